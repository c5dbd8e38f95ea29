"""The parser of settings, which may be a stranger's.

They name classes, or functions that make networks, and call nothing else.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from os import PathLike
from typing import Any, NoReturn

import yaml
from jsonargparse import (
    ArgumentParser,
    Namespace,
    Unset,
    add_instantiator,
    get_loader,
    set_loader,
    set_parsing_settings,
)
from jsonargparse._common import lenient_check, parsing_settings  # there is no public way to read them

from pfl_lightning.errors import PflError, SettingsError
from pfl_lightning.objects import (
    import_object,
    import_path,
    is_ours_or_torchs,
    is_torchvision,
    is_users,
    makes_network,
)
from pfl_lightning.settings.messages import blame, explain
from pfl_lightning.settings.shipped_files import with_config_files

MODE = "pfl"  # the name under which jsonargparse knows our loader
TEXT, NULL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"
MAX_VALUES = 100_000  # in a text of settings
UNSET_TEXT = "==UNSET=="  # as jsonargparse writes it
yaml_loader = get_loader("yaml")
NODE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@contextmanager
def strict_parsing() -> Iterator[None]:
    """Parse settings strictly in this block or function; jsonargparse has one such state for the whole process.

    A null that was given then differs from an option that was not given, so that it is checked against the option's
    type; and where a type admits anything, the settings of a class stay a mapping.
    """
    before = dict(parsing_settings)
    set_parsing_settings(unset_sentinel=True, instantiate_subclass_spec_in_any=False)
    try:
        yield
    finally:
        parsing_settings.update(before)


class SettingsParser(ArgumentParser):
    """Refuses null for an option that is never null, and functions in place of classes; errors are one line."""

    words: Sequence[str] = ()  # of the command line
    takes_over = True  # options of a class that was chosen before the one whose options these are

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(
            *args, **{"allow_abbrev": False, "usage": "pfl COMMAND [options]", "parser_mode": MODE, **kwargs}
        )

    def parse_args(self, args: Any = (), *others: Any, **kwargs: Any) -> Any:
        """Parse arguments; settings files may be given by their names in the package.

        Raises:
            SettingsError: If one is wrong, or was given to a class before another was chosen that does not take it.
        """
        words = self.words = list(with_config_files(_up_to_help(args)))
        words = [re.sub("=None$", "=null", word) for word in words]  # as jsonargparse writes a null inside of an option
        try:
            settings = super().parse_args(list(_with_class_paths(words)), *others, **kwargs)
        except Exception as error:  # of a number with hundreds of digits, or whatever a file of the user's raises
            if isinstance(error, PflError) or not (isinstance(error, OverflowError) or blame(error)):
                raise
            self.error(str(error), error)
        for key, name, is_first in _given_before_their_class(words):
            chosen = settings.get(key)
            if isinstance(chosen, Namespace) and "class_path" in chosen and name not in chosen.get("init_args", {}):
                kind = chosen.class_path.rpartition(".")[2]
                raise SettingsError(f"{key}.{name}: {kind} has no such option")
            if is_first and "." in key:
                raise SettingsError(f"--{key}.{name} must come after --{key}, since options belong to a class")
        return settings

    def parse_path(self, cfg_path: Any, *others: Any, **kwargs: Any) -> Any:
        """Parse a settings file, which errors name."""
        try:
            return super().parse_path(cfg_path, *others, **kwargs)
        except SettingsError as error:
            raise SettingsError(f"{error} (in {cfg_path})") from error
        except (ValueError, OverflowError) as error:  # no text, or no number
            raise SettingsError(f"Problems parsing config: {error} (in {cfg_path})") from error

    @strict_parsing()
    def instantiate(self, *args: Any, **kwargs: Any) -> Namespace:
        """Make the objects of settings; where a type admits anything, the settings of a class stay a mapping."""
        objects: Namespace = super().instantiate(*args, **kwargs)
        return objects

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise a ``SettingsError`` of one line; a parser of a class's options says all that this line is made of."""
        if not self.exit_on_error:
            super().error(message, ex)
        if isinstance(ex, PflError):
            raise SettingsError(str(ex)) from ex
        raise SettingsError(blame(ex) or explain(message, self.options(), self.words)) from ex

    def options(self) -> list[str]:
        """Every option of this parser, such as ``--trainer.max_steps``."""
        return [option for action in self._actions for option in action.option_strings]

    def dump(self, namespace: Namespace, *others: Any, **kwargs: Any) -> str:
        """Settings as YAML; an option that needs a value and has none is null."""
        namespace = namespace.clone()
        for key in [key for key, value in namespace.items() if value is None]:
            namespace[key] = Unset
        return str(super().dump(namespace, *others, **{"format": "yaml", **kwargs})).replace(UNSET_TEXT, "null")

    def add_subclass_arguments(self, *args: Any, **kwargs: Any) -> None:
        """Add the options of a class to choose, which must not be null."""
        super().add_subclass_arguments(*args, **{"default": Unset, **kwargs})

    def validate(self, namespace: Namespace, *others: Any, **kwargs: Any) -> None:
        """Check settings against the types of the options.

        A function is only possible as the default of its option, or if it makes a network, and a class as such only as
        the default, or if its objects may be called.

        Raises:
            TypeError: If a value is not possible.
        """
        super().validate(namespace, *others, **kwargs)
        for key, setting in namespace.items():
            if ".dict_kwargs" in key:
                raise TypeError(f'Parser key "{key}": dict_kwargs is not possible; allowed: init_args')
            for value in filter(_can_be_called, _flat(setting)):
                may_call = self.may_call_objects if isinstance(value, type) else self.may_call
                if value not in _flat(self.get_defaults().get(key)) and not may_call(value):
                    raise TypeError(f'Parser key "{key}": Import path {import_path(value)} is not a subclass')

    def _check_value_key(self, action: Any, value: Any, key: str, cfg: Any, *others: Any, **kwargs: Any) -> Any:
        """Check a value of an option; what a file has in the place of a list is its only element.

        Raises:
            TypeError: If it is not possible, or was given to another class in the place of this one: jsonargparse then
                asks, with no settings at all, which ones this class can take over. Methods and data sets do; a network
                would get the widths of another.
        """
        if not self.takes_over and cfg == Namespace() and not lenient_check.get():
            raise TypeError(f'Parser key "{key}": it belongs to another class')
        is_single = action.nargs == "+" and not isinstance(value, list) and value is not None and value is not Unset
        return super()._check_value_key(action, [value] if is_single else value, key, cfg, *others, **kwargs)

    def add_class_arguments(self, kind: type, *args: Any, **kwargs: Any) -> list[str]:
        """Add the options of a class; a default that is a ``partial`` of a class is shown and stored as settings.

        Raises:
            ImportError: If its objects can be called, and may not be. An option that takes anything that can be called
                takes them, and some constructors, such as that of ``sympy.Lambda``, run their arguments as code.
        """
        has_calls = isinstance(kind, type) and any("__call__" in vars(base) for base in kind.__mro__)
        if has_calls and not self.may_call_objects(kind):
            raise ImportError(f"Import path {import_path(kind)} is not a subclass")
        bases = kind.__mro__ if isinstance(kind, type) else ()
        self.takes_over = any(base.__name__ in ("LightningModule", "LightningDataModule") for base in bases)
        names: list[str] = super().add_class_arguments(kind, *args, **kwargs)
        for action in self._actions:  # their defaults have no public name
            if isinstance(default := action.default, partial) and isinstance(default.func, type) and not default.args:
                action.default = Namespace(class_path=import_path(default.func), init_args=Namespace(default.keywords))
        return names

    def add_function_arguments(self, function: Any, *others: Any, **kwargs: Any) -> list[str]:
        """Add the options of a function that makes a network; the parser asks for those of all that it would call.

        The settings then give a ``partial`` of it with these options, to be called with what comes from the data set.

        Raises:
            ImportError: If it is another function.
        """
        if not self.may_call(function):
            raise ImportError(f"Import path {import_path(function)} is not a subclass")
        add_instantiator(_with_options, function, subclasses=False)  # type: ignore[arg-type]
        self.takes_over = False
        from_data = {"input_shape", "num_classes", "output_shape"}
        return super().add_function_arguments(function, *others, **{**kwargs, "skip": from_data})

    def may_call(self, function: Any) -> bool:
        """Whether settings may name a function: one of torchvision or of the user's own that makes a network."""
        return makes_network(function)

    def may_call_objects(self, kind: type) -> bool:
        """Whether settings may name a class whose objects are called: a torch module, one of ours or of the user's."""
        return is_ours_or_torchs(kind) or is_users(kind)


class CheckpointParser(SettingsParser):
    """Parses the settings in a checkpoint: of functions, and of classes whose objects are called, it takes fewer."""

    def may_call_objects(self, kind: type) -> bool:
        """Whether a checkpoint may name a class whose objects are called: a torch module, or one of ours."""
        return is_ours_or_torchs(kind)

    def may_call(self, function: Any) -> bool:
        """Whether a checkpoint may name a function: one of torchvision that makes a network."""
        return makes_network(function) and is_torchvision(function)


def load_settings(text: str) -> Any:
    """Read YAML as plain values.

    Raises:
        YAMLError: If the text holds itself, or its aliases make it too long to ever be read, or a key is there twice,
            or a class is named by what is no text.
    """
    nodes = [yaml.compose(text, NODE_LOADER)]
    count = 0
    while nodes:
        node = nodes.pop()
        count += 1
        if isinstance(node, yaml.MappingNode):
            keys = Counter(str(key.value) for key, _ in node.value)
            if repeated := [key for key, times in keys.items() if times > 1]:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"{repeated[0]} is there twice in what begins in line {line}")
            for key, value in node.value:
                if key.value == "class_path" and value.tag not in (TEXT, NULL):
                    got = value.value if isinstance(value, yaml.ScalarNode) else f"a {value.id}"
                    raise yaml.YAMLError(f"class_path must be the import path of a class, got {got}")
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        if count + len(nodes) > MAX_VALUES:
            raise yaml.YAMLError(f"more than {MAX_VALUES:,} values, or an alias within its own anchor")
    return yaml_loader(text)


# defaults of Lightning's, such as that of Timer.interval, are words of an enumeration
yaml.SafeDumper.add_multi_representer(str, lambda dumper, word: dumper.represent_str(str.__str__(word)))
set_loader(MODE, load_settings, exceptions=(yaml.YAMLError,))


def _can_be_called(value: Any) -> bool:
    """Whether a value can be called; the parser's paths of settings files can, too, and are none to be called."""
    return callable(value) and not isinstance(value, PathLike)


def _flat(setting: Any) -> Iterator[Any]:
    """A value, or the values in lists and mappings of them."""
    inner = list(setting.values()) if isinstance(setting, dict) else setting
    if isinstance(inner, list | tuple | set):
        for value in inner:
            yield from _flat(value)
    else:
        yield inner


def _with_options(function: Any, **options: Any) -> Any:
    """A function with its options, which is called with what comes from the data set."""
    return partial(function, **options)


def _up_to_help(words: Sequence[str]) -> Iterator[str]:
    """The words, without options that follow one such as ``--model.help FedRep`` and ask for no help themselves."""
    has_asked = is_dropped = False
    for word in words:
        if word.startswith("-"):
            asks = word.partition("=")[0].endswith(".help")
            is_dropped = has_asked and not asks
            has_asked = has_asked or asks
        if not is_dropped:
            yield word


def _with_class_paths(words: Sequence[str]) -> Iterator[str]:
    """Arguments in which a function that makes a network is given as a class is, so that it can have options."""
    for word, following in pairwise([*words, ""]):
        option, equals, value = word.partition("=")
        is_function = option.endswith(".network") and makes_network(import_object(value if equals else following))
        yield f"{option}.class_path{equals}{value}" if is_function else word


def _given_before_their_class(words: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Keys of classes that are chosen after an option of theirs was given, its name, and whether for the first time."""
    options = [word.partition("=")[0] for word in words]
    for place, option in enumerate(options):
        for dot in re.finditer(r"\.", option):
            if option[: dot.start()] in options[place + 1 :]:
                is_first = option[: dot.start()] not in options[:place]
                yield option[2 : dot.start()], option[dot.end() :].partition(".")[0], is_first
