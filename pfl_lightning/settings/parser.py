"""A parser of settings that a stranger may have written.

They name classes to import, or functions that make networks, and call nothing else.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise
from typing import Any

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

from pfl_lightning.imports import import_object, import_path, is_torchvision, makes_network

# a null that was given differs from an option that was not given, so the parser checks it against the option's type;
# where a type admits anything, a class stays a mere mapping
set_parsing_settings(unset_sentinel=True, instantiate_subclass_spec_in_any=False)

_UNSET = "==UNSET=="  # as the parser writes it
_LARGEST = 100_000  # values in a text of settings
_load_yaml = get_loader("yaml")
_NODES = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _load(text: str) -> Any:
    """Settings as plain values.

    Raises:
        YAMLError: If the text holds itself, or its aliases make it too long to ever be read, or a key is there twice.
    """
    nodes, counted = [yaml.compose(text, _NODES)], 0
    while nodes:
        node, counted = nodes.pop(), counted + 1
        if isinstance(node, yaml.MappingNode):
            keys = Counter(str(key.value) for key, _ in node.value)
            if twice := [key for key, count in keys.items() if count > 1]:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"{twice[0]} is there twice in what begins in line {line}; allowed: once")
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        if counted + len(nodes) > _LARGEST:
            raise yaml.YAMLError(f"more than {_LARGEST:,} values, or an alias within its own anchor")
    return _load_yaml(text)


set_loader("yaml", _load, exceptions=(yaml.YAMLError,))


class StrictParser(ArgumentParser):
    """Refuses null for an option that is never null, and functions in place of classes."""

    def parse_args(self, args: Any = (), *others: Any, **kwargs: Any) -> Any:
        """Parse arguments; a null for an option of an option arrives here under its Python name."""
        words = [re.sub("=None$", "=null", word) for word in args]
        return super().parse_args(list(_with_options(words)), *others, **kwargs)

    def dump(self, namespace: Namespace, *others: Any, **kwargs: Any) -> str:
        """Settings as text; an option that has no value, though it needs one, is null."""
        given = namespace.clone()
        for key in [key for key, value in given.items() if value is None]:
            given[key] = Unset
        return str(super().dump(given, *others, **kwargs)).replace(_UNSET, "null")

    def add_subclass_arguments(self, *args: Any, **kwargs: Any) -> None:
        """Add the options of a class to choose, which must not be null."""
        super().add_subclass_arguments(*args, **{"default": Unset, **kwargs})

    def validate(self, namespace: Namespace, *others: Any, **kwargs: Any) -> None:
        """Check settings against the types of the options.

        A function is only possible as the default of its option, or if it makes a network.

        Raises:
            TypeError: If a value is not possible.
        """
        super().validate(namespace, *others, **kwargs)
        for key, value in namespace.items():
            is_function = callable(value) and not isinstance(value, type)
            if is_function and value != self.get_defaults().get(key) and not self.may_call(value):
                raise TypeError(f'Parser key "{key}": Import path {import_path(value)} is not a subclass')

    def add_class_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        """Add the options of a class; a default that is a ``partial`` of a class is shown and stored as settings."""
        names: list[str] = super().add_class_arguments(*args, **kwargs)
        for action in self._actions:
            if isinstance(default := action.default, partial) and isinstance(default.func, type) and not default.args:
                action.default = Namespace(class_path=import_path(default.func), init_args=Namespace(default.keywords))
        return names

    def add_function_arguments(self, function: Any, *others: Any, **kwargs: Any) -> list[str]:
        """Add the options of a function that makes a network; the parser asks for those of all that it would call.

        The settings then give the function with these options, to be called with what comes from the data set.

        Raises:
            ImportError: If it is another function.
        """
        if not self.may_call(function):
            raise ImportError(f"Import path {import_path(function)} is not a subclass")
        add_instantiator(_later, function, subclasses=False)  # type: ignore[arg-type]
        return super().add_function_arguments(function, *others, **{**kwargs, "skip": {"input_shape", "num_classes"}})

    def may_call(self, function: Any) -> bool:
        """Whether settings may name a function: one of torchvision or of the user's own that makes a network."""
        return makes_network(function)


class CheckpointParser(StrictParser):
    """Parses what a checkpoint says, which names no functions but those of torchvision."""

    def may_call(self, function: Any) -> bool:
        """Whether a checkpoint may name a function: one of torchvision that makes a network."""
        return makes_network(function) and is_torchvision(function)


def _later(function: Any, **options: Any) -> Any:
    """A function with its options, which is called with what comes from the data set."""
    return partial(function, **options)


def _with_options(words: list[str]) -> Iterator[str]:
    """Arguments in which a function that makes a network is given as a class is, so that it can have options."""
    for word, following in pairwise([*words, ""]):
        option, given, value = word.partition("=")
        is_function = option.endswith(".network") and makes_network(import_object(value if given else following))
        yield f"{option}.class_path{given}{value}" if is_function else word


@cache
def options_of(kind: Any) -> list[str]:
    """The arguments that a class takes, with those that it passes on to its bases."""
    names: list[str] = ArgumentParser().add_class_arguments(kind, fail_untyped=False)
    return names
