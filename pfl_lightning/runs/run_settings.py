"""The settings of a run, and the objects that they make: words go through here once, on their way to a ``Session``."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from inspect import Parameter
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import yaml
from jsonargparse import ArgumentParser, Namespace

from pfl_lightning.bounds import Seed
from pfl_lightning.callbacks import PercentileErrors, RoundCheckpoint
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError, SettingsError
from pfl_lightning.methods import Method
from pfl_lightning.objects import default_arguments, import_object, unserializable_keys
from pfl_lightning.runs.trainer_options import check_settings
from pfl_lightning.settings.parser import SettingsParser, strict_parsing
from pfl_lightning.settings.shipped_files import CONFIG_FLAGS
from pfl_lightning.settings.values import Settings, class_name

ALIASES = {  # short names for options: each means exactly one, with the same values
    "method": "model",
    "dataset": "data",
    "rounds": "trainer.max_steps",
    "clients": "data.num_clients",
    "lr": "model.local.lr",
    "epochs": "model.local.epochs",
    "batch_size": "model.local.batch_size",
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


CALLBACK_SECTIONS = {"checkpoint": RoundCheckpoint, "percentile_errors": PercentileErrors}  # are in every run


class RunParts(NamedTuple):
    """What a run is made of.

    Attributes:
        settings: All settings, as plain values.
        method: The method, which is not built yet.
        data: The data set, which is not loaded yet.
        callbacks: The user's callbacks.
        of_sections: The callbacks that have a section of the settings each, by its name.
        trainer: Options of the trainer. Its logger is as in the settings: it is made when the run has a folder.
    """

    settings: dict[str, Any]
    method: Method
    data: FederatedDataModule
    callbacks: Sequence[pl.Callback]
    of_sections: Mapping[str, Any]
    trainer: dict[str, Any]


def without_alias(setting: str) -> str:
    """A setting with its value under its full name: ``model.local.lr=0.1`` for ``lr=0.1``."""
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
    for section, kind in CALLBACK_SECTIONS.items():
        parser.add_class_arguments(kind, section, sub_configs=True)
    parser.link_arguments("seed_everything", "data.init_args.seed")
    parser.set_defaults({f"trainer.{option}": value for option, value in TRAINER_DEFAULTS.items()})
    parser.set_defaults({"model": {"class_path": "pfl_lightning.methods.FedAvg"}})
    parser.set_defaults({"data": {"class_path": "pfl_lightning.data.Digits"}})


def run_parser() -> SettingsParser:
    """A parser of the settings of a run, from files and options or from Python."""
    parser = SettingsParser()
    parser.add_argument(*CONFIG_FLAGS, action="config")
    add_run_settings(parser)
    return parser


def parse_words(parser: ArgumentParser, words: Iterable[str]) -> Namespace:
    """Parse options, and settings files after ``--config``.

    Raises:
        PflError: If they are wrong, or give the data set another seed than the run's, which would be lost.
    """
    words = ["--help" if word == "--help.all" else word for word in without_aliases(words)]
    parsed = parser.parse_args(words)
    reason = "the data's seed follows seed_everything; allowed:"
    for word in words:
        if word.partition("=")[0] in ("--data.seed", "--data.init_args.seed"):
            raise SettingsError(f"{word} is not possible: {reason} --seed_everything")
    callbacks: set[str] = set()
    for file in filter(None, parsed.get("config") or ()):  # null for settings that are in no file
        content = yaml.safe_load(Path(str(file)).read_text())
        callbacks = _callbacks_after(str(file), content, callbacks)
        data = content.get("data")
        arguments = data.get("init_args", data) if isinstance(data, dict) else {}
        if isinstance(arguments, dict) and arguments.get("seed", parsed.seed_everything) != parsed.seed_everything:
            what = f"data.seed: {arguments['seed']} is not possible in '{file}'"
            raise SettingsError(f"{what}: {reason} {parsed.seed_everything}, or seed_everything")
    return parsed


def _callbacks_after(file: str, content: Settings, before: set[str]) -> set[str]:
    """Class names of the callbacks that are in effect after a settings file; warns of those that it drops."""
    trainer = content.get("trainer") or {}
    given = trainer.get("callbacks", trainer.get("callbacks+")) or []
    several = given if isinstance(given, list) else [given]
    named = {class_name(entry if isinstance(entry, str) else entry["class_path"]) for entry in several}
    if "callbacks" not in trainer:
        return before | named
    if dropped := before - named:
        line = f"'{file}' drops {', '.join(sorted(dropped))} of the settings before it; callbacks+ adds to them"
        warnings.warn(f"trainer.callbacks: {line}", stacklevel=3)
    return named


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
def settings_of(words: Iterable[str]) -> dict[str, Any]:
    """All settings of the options of ``pfl fit``, as plain values.

    Raises:
        PflError: If they are wrong.
    """
    parser = run_parser()
    return plain_settings(parser, parse_words(parser, words))


@strict_parsing()
def complete_settings(settings: Settings) -> dict[str, Any]:
    """All settings of a run, with the defaults of those that are left out.

    Args:
        settings: Settings, as plain values; a text says what an object from Python is.

    Raises:
        PflError: If one is not possible.
    """
    from_python = list(dict.fromkeys(unserializable_keys(settings)))
    serializable = deepcopy(dict(settings))
    for *path, name in from_python:
        del _inner(serializable, path)[name]
    required = [part for part in ("model", "data") if _lacks_required(serializable[part], settings[part])]
    parts = {part: serializable.pop(part) for part in required}
    parser = run_parser()
    complete = {**plain_settings(parser, parser.parse_object(serializable)), **parts}
    for *path, name in from_python:
        _inner(complete, path)[name] = _inner(settings, path)[name]
    return complete


@strict_parsing()
def parts_of(settings: dict[str, Any], **objects: Any) -> RunParts:
    """What a run with some settings is made of.

    Args:
        settings: All settings, as plain values.
        objects: A ``model`` or ``data`` that is there already.

    Raises:
        PflError: If a setting is not possible.
    """
    parser = run_parser()
    others = {name: part for name, part in settings.items() if name not in objects}
    return make_parts(parser, parser.parse_object(deepcopy(others)), settings, **objects)  # which it changes in place


def make_parts(
    parser: ArgumentParser, parsed: Namespace, settings: dict[str, Any] | None = None, **objects: Any
) -> RunParts:
    """Make what a run consists of.

    Args:
        parser: The parser of the settings.
        parsed: Its result.
        settings: The same as plain values, if they are there already.
        objects: A ``model`` or ``data`` that is there already.

    Raises:
        PflError: If a setting is not possible.
    """
    settings = settings or plain_settings(parser, parsed)
    parsed.trainer.logger = False  # it is made when the run has a folder
    made = {**vars(parser.instantiate(parsed)), **objects}
    trainer = {**vars(made["trainer"]), "logger": settings["trainer"]["logger"]}
    callbacks = trainer.pop("callbacks") or ()
    callbacks = [callbacks] if isinstance(callbacks, pl.Callback) else callbacks
    check_objects(made["model"], made["data"], callbacks)
    of_sections = {section: made[section] for section in CALLBACK_SECTIONS}
    return RunParts(settings, made["model"], made["data"], callbacks, of_sections, trainer)


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


def _inner(settings: Any, path: Iterable[str]) -> Any:
    """The settings at a path from the top."""
    for name in path:
        settings = settings[name]
    return settings


def _lacks_required(part: Settings, settings: Settings) -> bool:
    """Whether an object from Python is for an argument that has no default, so that the parser would ask for it."""
    missing = settings.get("init_args", {}).keys() - part.get("init_args", {}).keys()
    defaults = default_arguments(import_object(settings["class_path"]))
    return any(defaults.get(name) is Parameter.empty for name in missing)
