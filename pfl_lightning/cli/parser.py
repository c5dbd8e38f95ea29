import sys
from inspect import isabstract
from typing import Any, NoReturn

import lightning.pytorch as pl
import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from pfl_lightning import callbacks, data, methods, models, server, system
from pfl_lightning.cli.complaints import explain
from pfl_lightning.cli.config_files import with_config_files
from pfl_lightning.cli.console import complain, debugging
from pfl_lightning.cli.own_code import MORE, blame
from pfl_lightning.data import FederatedDataModule, Partition, Sizes
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.models import Network
from pfl_lightning.server import Aggregator, Topology
from pfl_lightning.strict import StrictParser, makes_network
from pfl_lightning.system import Speeds


def _is_choice(member: object, base: type) -> bool:
    return isinstance(member, type) and issubclass(member, base) and member is not base and not isabstract(member)


CHOICES: dict[str, dict[str, type]] = {
    key: {name: vars(package)[name] for name in package.__all__ if _is_choice(vars(package)[name], base)}
    for key, package, base in (
        ("model", methods, Method),
        ("data", data, FederatedDataModule),
        ("partition", data, Partition),
        ("sizes", data, Sizes),
        ("network", models, Network),
        ("speeds", system, Speeds),
        ("aggregator", server, Aggregator),
        ("topology", server, Topology),
        ("callbacks", callbacks, pl.Callback),
    )
}


class PflParser(StrictParser, LightningArgumentParser):
    """Answers a wrong command line with one line and exit code 2."""

    source = ""  # the run whose settings the words of the command line begin with
    _file = ""  # the settings file, or that run, that is being read

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_args(self, args: Any = None, *others: Any, **kwargs: Any) -> Any:
        """Parse arguments; a settings file may be given by its name in the package.

        A file of the user's own that fails when it is imported is an error in them.
        """
        try:
            words = list(with_config_files(sys.argv[1:] if args is None else args))
            return super().parse_args(words, *others, **kwargs)
        except Exception as error:  # whatever such a file raises
            said = str(error) if isinstance(error, PflError) else f"{place} {MORE}" if (place := blame(error)) else ""
            if debugging() or not said:
                raise
            self.error(said, error)

    def parse_path(self, cfg_path: Any, *others: Any, **kwargs: Any) -> Any:
        """Parse a settings file, which errors will name."""
        outer, self._file = self._file, str(cfg_path)
        try:
            return super().parse_path(cfg_path, *others, **kwargs)
        except UnicodeDecodeError as error:
            self.error(f"Problems parsing config: {error}", error)
        finally:
            self._file = outer

    def parse_string(self, content: str, *others: Any, **kwargs: Any) -> Any:
        """Parse the settings of a run, which errors will name."""
        outer, self._file = self._file, self._file or self.source
        try:
            return super().parse_string(content, *others, **kwargs)
        finally:
            self._file = outer

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong, and where help is."""
        if not self.exit_on_error:
            super().error(message, ex)
        try:
            line = explain(message, self.options(), CHOICES)
        except PflError as broken:  # a file of the user's own
            if debugging():
                raise
            line = str(broken)
        if debugging():
            super().error(message, ex)
        line = f"{line} (in {self._file})" if self._file else line
        complain(line)
        raise SystemExit(2) from PflError(line)

    def may_call(self, function: Any) -> bool:
        """Whether settings may name a function: any that says that it returns a torch module."""
        return makes_network(function)

    def options(self) -> list[str]:
        """Every option that this parser or one of its subcommands knows, such as ``--trainer.max_steps``."""
        subparsers = [action.choices.values() for action in self._actions if isinstance(action.choices, dict)]
        return [
            *self._option_string_actions,
            *(name for parsers in subparsers for p in parsers for name in p.options()),
        ]


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
