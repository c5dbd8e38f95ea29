"""The settings of a run, and the objects that they make: words go through here once, on their way to a ``Session``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from inspect import Parameter
from typing import Any, NamedTuple

import lightning.pytorch as pl
import yaml
from jsonargparse import ArgumentParser, Namespace

from pfl_lightning.bounds import Seed
from pfl_lightning.callbacks import PercentileErrors, RoundCheckpoint
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.objects import default_arguments, import_object, unserializable_keys
from pfl_lightning.runs.trainer_options import check_settings
from pfl_lightning.settings.parser import SettingsParser, strict_parsing
from pfl_lightning.settings.shipped_files import check_seed
from pfl_lightning.settings.values import Settings

ALIASES = {  # short names for options: each means exactly one, with the same values
    "method": "model",
    "dataset": "data",
    "rounds": "trainer.max_steps",
    "clients": "data.num_clients",
    "lr": "model.lr",
    "epochs": "model.epochs",
    "batch_size": "model.batch_size",
    "seed": "seed_everything",
}
TRAINER_DEFAULTS: dict[str, Any] = {
    "max_steps": 100,
    "max_epochs": -1,
    "devices": 1,
    "val_check_interval": 10,
    "check_val_every_n_epoch": None,
    "log_every_n_steps": 1,
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
    "enable_autolog_hparams": False,
    "default_root_dir": "runs",
}


class RunParts(NamedTuple):
    """What a run is made of.

    Attributes:
        settings: All settings, as plain values.
        method: The method, which is not built yet.
        data: The data set, which is not loaded yet.
        callbacks: The user's callbacks.
        checkpoint: When checkpoints are saved.
        percentile_errors: Which percentiles of the clients are logged.
        trainer: Options of the trainer. Its logger is as in the settings: it is made when the run has a folder.
    """

    settings: dict[str, Any]
    method: Method
    data: FederatedDataModule
    callbacks: Sequence[pl.Callback]
    checkpoint: RoundCheckpoint
    percentile_errors: PercentileErrors
    trainer: dict[str, Any]


def without_alias(setting: str) -> str:
    """A setting with its value under its full name: ``model.lr=0.1`` for ``lr=0.1``."""
    name, equals, value = setting.partition("=")
    return f"{ALIASES.get(name, name)}{equals}{value}"


def without_aliases(words: Iterable[str]) -> Iterator[str]:
    """The words of a command line with the options that aliases stand for."""
    for word in map(str, words):
        yield f"--{without_alias(word[2:])}" if word.startswith("--") else word


def add_run_settings(parser: ArgumentParser) -> None:
    """Add the settings of a run to a parser; FedAvg on the embedded digits needs none at all.

    The data set's seed follows ``seed_everything``.
    """
    parser.add_argument("--seed_everything", type=Seed, default=1)
    parser.add_class_arguments(pl.Trainer, "trainer", instantiate=False, fail_untyped=False, sub_configs=True)
    parser.add_subclass_arguments(Method, "model", fail_untyped=False)
    parser.add_subclass_arguments(FederatedDataModule, "data", fail_untyped=False)
    parser.add_class_arguments(RoundCheckpoint, "checkpoint", sub_configs=True)
    parser.add_class_arguments(PercentileErrors, "percentile_errors", sub_configs=True)
    parser.link_arguments("seed_everything", "data.init_args.seed")
    parser.set_defaults({f"trainer.{option}": value for option, value in TRAINER_DEFAULTS.items()})
    parser.set_defaults({"model": {"class_path": "pfl_lightning.methods.FedAvg"}})
    parser.set_defaults({"data": {"class_path": "pfl_lightning.data.Digits"}})


def run_parser() -> SettingsParser:
    """A parser of the settings of a run from Python."""
    parser = SettingsParser()
    add_run_settings(parser)
    return parser


def plain_settings(parser: ArgumentParser, parsed: Namespace) -> dict[str, Any]:
    """Parsed settings as numbers, strings, lists and mappings, as a settings file has them.

    Returns:
        Nested settings with every null, which need not be the default.

    Raises:
        PflError: If they make no sense with communication rounds.
    """
    settings: dict[str, Any] = yaml.safe_load(parser.dump(parsed, skip_unset=False, skip_validation=True))
    check_settings(settings)
    return settings


@strict_parsing()
def parse_words(words: Sequence[str]) -> dict[str, Any]:
    """All settings of a run from options, and from settings files after ``--config``.

    Raises:
        PflError: If they are wrong.
    """
    words = list(without_aliases(words))
    parser = run_parser()
    parser.add_argument("--config", action="config")
    parsed = parser.parse_args(words)
    check_seed(words, parsed.pop("config") or (), parsed.seed_everything)
    return plain_settings(parser, parsed)


@strict_parsing()
def complete_settings(settings: Settings) -> dict[str, Any]:
    """All settings of a run, with the defaults of those that are left out.

    Args:
        settings: Settings, as plain values; a text says what an object from Python is.

    Raises:
        PflError: If one is not possible.
    """
    from_python = list(unserializable_keys(settings))
    serializable = _without(settings, from_python)
    required = [part for part in ("model", "data") if _lacks_required(serializable[part], settings[part])]
    parts = {part: serializable.pop(part) for part in required}
    parser = run_parser()
    complete = {**plain_settings(parser, parser.parse_object(deepcopy(serializable))), **parts}
    for path in from_python:
        target, source = complete, settings
        for name in path[:-1]:
            target = target.setdefault(name, {})
            source = source[name]
        target[path[-1]] = source[path[-1]]
    return complete


@strict_parsing()
def make_parts(settings: dict[str, Any], **objects: Any) -> RunParts:
    """The objects of settings.

    Args:
        settings: All settings, as plain values.
        objects: A ``model`` or ``data`` that is there already.

    Raises:
        PflError: If one is not possible.
    """
    parser = run_parser()
    parsed = {name: part for name, part in settings.items() if name not in objects}
    parsed["trainer"] = {**settings["trainer"], "logger": False}
    made = parser.instantiate(parser.parse_object(deepcopy(parsed)))  # parsing changes settings in place
    return parts_of(Namespace({**vars(made), **objects}), settings)


def parts_of(made: Namespace, settings: dict[str, Any]) -> RunParts:
    """The parts of a run among the objects that a parser has made of its settings."""
    trainer = {**vars(made.trainer), "logger": settings["trainer"]["logger"]}
    callbacks = trainer.pop("callbacks") or ()
    callbacks = [callbacks] if isinstance(callbacks, pl.Callback) else callbacks
    check_objects(made.model, made.data, callbacks)
    return RunParts(settings, made.model, made.data, callbacks, made.checkpoint, made.percentile_errors, trainer)


def check_objects(method: object, data: object, callbacks: Sequence[object]) -> None:
    """Refuse what is no object of its kind, such as a class, or one whose constructor leaves out those of its bases.

    Raises:
        PflError: If there is one.
    """
    for key, value, kind in (
        ("model", method, Method),
        ("data", data, FederatedDataModule),
        *(("trainer.callbacks", callback, pl.Callback) for callback in callbacks),
    ):
        if not isinstance(value, kind):
            shown = value if isinstance(value, type | str) else type(value).__name__
            raise PflError(f"{key} must be an object of a subclass of {kind.__name__}, got {shown}")
        if kind is not pl.Callback and "init_args" not in vars(value):
            raise PflError(f"{key}: {type(value).__name__}.__init__ lacks its super().__init__(**kwargs)")
        if kind is not pl.Callback and "<locals>" in type(value).__qualname__:
            raise PflError(f"{key}: {type(value).__name__} must be a class of a module, not of a function")


def _without(settings: Any, paths: Sequence[tuple[str, ...]], *path: str) -> Any:
    """Settings without those at some paths."""
    if not isinstance(settings, Mapping):
        return settings
    names = [name for name in settings if (*path, name) not in paths]
    return {name: _without(settings[name], paths, *path, name) for name in names}


def _lacks_required(part: Settings, settings: Settings) -> bool:
    """Whether an object from Python is for an argument that has no default, so that the parser would ask for it."""
    missing = settings.get("init_args", {}).keys() - part.get("init_args", {}).keys()
    defaults = default_arguments(import_object(settings["class_path"]))
    return any(defaults.get(name) is Parameter.empty for name in missing)
