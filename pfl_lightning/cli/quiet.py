"""The command line for Python: settings may hold any objects, nothing is printed, and errors are raised."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, cast

import lightning.pytorch as pl
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn

from pfl_lightning.callbacks import EvaluationTable
from pfl_lightning.callbacks.checkpointing import Stopped
from pfl_lightning.callbacks.run_folder import RunFolder
from pfl_lightning.cli.errors import explain
from pfl_lightning.cli.fit import PflCLI
from pfl_lightning.cli.parser import CHOICES, PflParser, plain
from pfl_lightning.cli.runs import Resume
from pfl_lightning.errors import PflError, cause_of
from pfl_lightning.methods import Method, NeedsSamplesError
from pfl_lightning.recipes import word_for

LOGGERS = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.seed")


class QuietParser(PflParser):
    """Raises what the command line would print; takes functions, since they come from the program itself."""

    takes_functions = True

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what is wrong, in one line; the parser of an option's class leaves the words to that of all options."""
        if not self.exit_on_error:
            super().error(message, ex)
        raise cause_of(ex) or PflError(explain(message, self.options(), CHOICES)) from None

    def dump(self, namespace: Namespace, *others: Any, **kwargs: Any) -> str:
        """Settings as text; they may have words in place of objects."""
        text = super().dump(namespace, *others, **{**kwargs, "skip_validation": True})
        return re.sub(r"Unable\s+to\s+serialize\s+instance\s+<", "<", text)


class Session(PflCLI):
    """``pfl fit``, ``test`` or ``validate`` of a program.

    Args:
        settings: The subcommand with all settings as nested mappings, or the words of a command line.
        run: Whether there is a subcommand.
        callbacks: Callbacks beside those of the settings.
    """

    parser_kind = QuietParser
    speaks = False

    def __init__(self, settings: Any, run: bool = True, callbacks: Sequence[pl.Callback] = ()) -> None:
        self.objects, self.added = list(objects_in(settings)), callbacks
        super().__init__(settings, run)

    @property
    def run_folder(self) -> Path:
        """The folder of a run that was trained."""
        return cast(RunFolder, self.folder).path

    @property
    def table(self) -> EvaluationTable:
        """What each client got."""
        callbacks: list[pl.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return next(callback for callback in callbacks if isinstance(callback, EvaluationTable))

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse words, or settings as they are."""
        if isinstance(args, Mapping):
            self.config = parser.parse_object(args)
            self.given.pop("verbose")
        else:
            super().parse_arguments(parser, args)

    def written(self, config: Namespace) -> Namespace:
        """The settings with words in place of objects."""
        words = config.clone()
        for key, value in config.items():
            if any(is_same(value, made) for made in self.objects):
                words[key] = word_for(value)
        return words

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Build the trainer, which writes the settings."""
        self.config[self.subcommand] = self.written(self.config[self.subcommand])
        return super().instantiate_trainer(**kwargs)


class Settings(Session):
    """Reads settings, and builds nothing."""

    def instantiate_classes(self) -> None:
        """Build nothing."""


class Parts(Session):
    """Builds the method and the data set, and no trainer."""

    def instantiate_classes(self) -> None:
        """Build both."""
        built = self.parser.instantiate_classes(self.config)
        self.model, self.datamodule = built.model, built.data


def settings_from(words: list[str]) -> dict[str, Any]:
    """All settings of a command line.

    Raises:
        PflError: If they are wrong.
    """
    with quiet():
        session = Settings(words, run=False)
        return plain(session.parser, session.config)


def run_quietly(command: str, settings: Mapping[str, Any], callbacks: Sequence[pl.Callback] = ()) -> Session:
    """Run a subcommand, with callbacks beside those of the settings.

    Raises:
        PflError: If the settings are wrong.
        KeyboardInterrupt: After the current round was saved, if the process is interrupted.
    """
    try:
        with quiet():
            return Session({"subcommand": command, command: settings}, callbacks=callbacks)
    except Stopped:
        raise KeyboardInterrupt("the round is saved; fit(resume=True) continues") from None


def built_from(settings: Mapping[str, Any], found: Resume | None = None) -> Parts:
    """The method and the data set of settings, as they are before training.

    Args:
        settings: All settings.
        found: The checkpoint, if the data set must be the one that it was trained on; it is loaded then.

    Raises:
        PflError: If the settings are wrong, or the data are others.
    """
    with quiet():
        parts = Parts(settings, run=False)
        if found:
            parts.resume = found
            parts.datamodule.setup()
            parts.check_data()
    return parts


def client_module(
    method: Method, client: int, model: str | None, settings: Callable[[], Mapping[str, Any]], found: Resume
) -> nn.Module:
    """One client's model; the data set is loaded if the model is trained on the client's samples.

    Args:
        method: The trained method.
        client: The client's id.
        model: Name of the model; see ``Method.client``.
        settings: Gives all settings of the run, of which the data set is made.
        found: The checkpoint.

    Raises:
        PflError: If there is no such client or model, or the data are others.
    """
    try:
        return method.client(client, model)
    except NeedsSamplesError:
        return method.client(client, model, built_from(settings(), found).datamodule)


def objects_in(settings: Any) -> Iterator[Any]:
    """What settings hold that a file cannot."""
    if isinstance(settings, Mapping | list | tuple):
        for inner in settings.values() if isinstance(settings, Mapping) else settings:
            yield from objects_in(inner)
    elif not isinstance(settings, str | int | float | Path | None):
        yield settings


def is_same(value: Any, made: Any) -> bool:
    """Whether a parsed value is an object, or a copy of it that the parser has made."""
    return value is made or (type(value) is type(made) and not isinstance(made, FunctionType))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's messages about itself."""
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="LightningCLI's args parameter.*")
        warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
        warnings.filterwarnings("ignore", message="\\s*Unable to serialize instance")
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
