import re
import sys
from typing import Any, NoReturn

import lightning.pytorch as pl
import yaml
from jsonargparse import Namespace, Unset, set_parsing_settings
from lightning.pytorch.cli import LightningArgumentParser

from pfl_lightning import callbacks, data, methods, models, server, system
from pfl_lightning.cli.complaints import explain
from pfl_lightning.cli.console import complain, debugging
from pfl_lightning.data import FederatedDataModule, Partition, Sizes
from pfl_lightning.methods import Method
from pfl_lightning.models import Network
from pfl_lightning.server import Sums, Topology
from pfl_lightning.system import Speeds

# a null that was given differs from an option that was not given, so the parser checks it against the option's type;
# where a type admits anything, a class stays a mere mapping
set_parsing_settings(unset_sentinel=True, instantiate_subclass_spec_in_any=False)


def _is_choice(member: object, base: type) -> bool:
    return isinstance(member, type) and issubclass(member, base) and member is not base


CHOICES: dict[str, dict[str, type]] = {
    key: {name: vars(package)[name] for name in package.__all__ if _is_choice(vars(package)[name], base)}
    for key, package, base in (
        ("model", methods, Method),
        ("data", data, FederatedDataModule),
        ("partition", data, Partition),
        ("sizes", data, Sizes),
        ("network", models, Network),
        ("speeds", system, Speeds),
        ("sums", server, Sums),
        ("topology", server, Topology),
        ("callbacks", callbacks, pl.Callback),
    )
}


class PflParser(LightningArgumentParser):
    """Answers a wrong command line with one line and exit code 2; calls no function that settings name."""

    _file = ""  # the settings file that is being read

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_args(self, args: Any = None, *others: Any, **kwargs: Any) -> Any:
        """Parse arguments; a null for an option of an option arrives here under its Python name."""
        words = sys.argv[1:] if args is None else args
        return super().parse_args([re.sub("=None$", "=null", word) for word in words], *others, **kwargs)

    def parse_path(self, cfg_path: Any, *others: Any, **kwargs: Any) -> Any:
        """Parse a settings file, which errors will name."""
        outer, self._file = self._file, str(cfg_path)
        try:
            return super().parse_path(cfg_path, *others, **kwargs)
        except UnicodeDecodeError as error:
            self.error(f"Problems parsing config: {error}", error)
        finally:
            self._file = outer

    def add_subclass_arguments(self, *args: Any, **kwargs: Any) -> None:
        """Add the options of a class to choose, which must not be null."""
        super().add_subclass_arguments(*args, **{"default": Unset, **kwargs})

    def validate(self, namespace: Namespace, *others: Any, **kwargs: Any) -> None:
        """Check settings against the types of the options; a function is only possible as the default of its option.

        Raises:
            TypeError: If a value is not possible.
        """
        super().validate(namespace, *others, **kwargs)
        for key, value in namespace.items():
            if callable(value) and not isinstance(value, type) and value != self.get_defaults().get(key):
                raise TypeError(f'Parser key "{key}": Import path {_named(value)} is not a subclass')

    def add_function_arguments(self, function: Any, *_: Any, **__: Any) -> NoReturn:
        """Refuse what would be called though it is no class; the parser asks for the arguments of all it calls.

        Raises:
            ImportError: Always.
        """
        raise ImportError(f"Import path {_named(function)} is not a subclass")

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong, and where help is."""
        if not self.exit_on_error or debugging():
            super().error(message, ex)
        line = explain(message, self.options(), CHOICES)
        complain(f"{line} (in {self._file})" if self._file else line)
        raise SystemExit(2)

    def options(self) -> list[str]:
        """Every option that this parser or one of its subcommands knows, such as ``--trainer.max_steps``."""
        subparsers = [action.choices.values() for action in self._actions if isinstance(action.choices, dict)]
        return [
            *self._option_string_actions,
            *(name for parsers in subparsers for p in parsers for name in p.options()),
        ]


def _named(value: Any) -> str:
    """A function, or an object that can be called, by its import path."""
    return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"


def plain(parser: LightningArgumentParser, config: Namespace, validate: bool = True) -> dict[str, Any]:
    """Parsed settings as numbers, strings, lists and mappings, as a settings file has them.

    Args:
        parser: What parsed them.
        config: The settings.
        validate: Whether required ones must be there.

    Returns:
        Nested settings with every null, which need not be the default.
    """
    settings: dict[str, Any] = yaml.safe_load(parser.dump(config, skip_unset=False, skip_validation=not validate))
    return settings
