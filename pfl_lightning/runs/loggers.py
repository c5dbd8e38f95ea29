"""The loggers of a run, which write into its folder unless their own options say otherwise."""

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from lightning.pytorch.loggers import Logger, MLFlowLogger, WandbLogger

from pfl_lightning import files, processes
from pfl_lightning.callbacks import MetricsTable
from pfl_lightning.callbacks.board import Board
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.settings.parser import SettingsParser
from pfl_lightning.settings.values import Settings, flat

CONTINUED: dict[type[Logger], str] = {WandbLogger: "id", MLFlowLogger: "run_id"}  # the argument that continues a run
EXTRAS = {"WandbLogger": "wandb", "MLFlowLogger": "mlflow"}  # packages, which are extras of this one
IDS = "loggers.yaml"  # which runs they have begun; in the run's folder


def loggers_of(setting: Any, table: MetricsTable, rounds: int | None) -> list[Logger]:
    """The loggers of a run.

    Args:
        setting: ``trainer.logger``: null or true for TensorBoard, false for none, or the user's own.
        table: The table ``metrics.csv`` of the run's folder. A logger of the user's writes below this folder unless its
            ``save_dir`` says otherwise.
        rounds: For a run that continues: the rounds of which TensorBoard keeps all that was logged.

    Returns:
        TensorBoard or the user's own, and the table beside them; nothing for false. Only the first
        process of a run logs; the others have the table, which writes nothing there.

    Raises:
        PflError: If a logger cannot be made.
    """
    if setting is False:
        return []
    if processes.rank() > 0:
        return [table]
    folder = table.folder
    if setting in (None, True):
        place = folder.parent.parent, folder.parent.name, folder.name
        purge = None if rounds is None else rounds + 1
        return [Board(*place, default_hp_metric=False, purge_step=purge), table]
    several = setting if isinstance(setting, list) else [setting]
    return [*(each if isinstance(each, Logger) else _made(each, folder) for each in several), table]


def begin(loggers: Sequence[Logger], settings: Settings, folder: Path, is_new: bool) -> None:
    """Begin the loggers' runs with the settings, such as ``model.lr``, and remember which runs these are.

    Args:
        loggers: The loggers of a run.
        settings: All settings of the run, as plain values.
        folder: The run's folder.
        is_new: Whether the run begins; MLflow refuses to change the settings of a run that continues.

    Raises:
        PflError: If a logger cannot begin, such as W&B without an account.
    """
    for logger in loggers:
        if is_new or not isinstance(logger, MLFlowLogger):
            try:
                logger.log_hyperparams(dict(flat(settings)))
            except Exception as error:  # whatever its library raises
                raise PflError(f"trainer.logger: {type(logger).__name__} cannot begin: {one_line(error)}") from error
    if ids := {type(logger).__name__: logger.version for logger in loggers if isinstance(logger, tuple(CONTINUED))}:
        files.write_text(yaml.safe_dump(ids), folder / IDS)


def end(loggers: Sequence[Logger]) -> None:
    """End the runs of W&B, which would go on in the next run of this process."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()


def _made(setting: Mapping[str, Any], folder: Path) -> Logger:
    """A logger of the user's, which begins its run."""
    kind: type = resolve_name(setting["class_path"])
    parameters, options = signature(kind).parameters, dict(setting.get("init_args", {}))
    for name, value in _usual_options(kind, folder, options).items():
        if name in parameters and options.get(name) == parameters[name].default:
            options[name] = value
    parser = SettingsParser()
    parser.add_argument("--logger", type=Logger)
    try:
        given = parser.parse_object({"logger": {**setting, "init_args": options}})
        logger: Logger = parser.instantiate(given).logger
        getattr(logger, "experiment", None)  # W&B without an account fails here
    except Exception as error:  # whatever the class raises, such as for a package that is not installed
        cause, name = error.__cause__ or error, kind.__name__
        if name in EXTRAS and isinstance(cause, ModuleNotFoundError):
            wanted = f'{name} needs {EXTRAS[name]}: pip install "pfl_lightning[{EXTRAS[name]}]"'
            raise PflError(f"trainer.logger: {wanted}") from error
        raise PflError(f"trainer.logger: {name} cannot be made: {one_line(cause)}") from error
    return logger


def _usual_options(kind: type, folder: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """Options with which a logger continues its run, and writes below a run's folder."""
    name, options = str(Path(*folder.parts[-2:])), {"save_dir": str(folder)}
    if issubclass(kind, WandbLogger):
        options["name"] = name
    if issubclass(kind, MLFlowLogger):
        place = given.get("save_dir")
        store = Path(folder if place in (None, "./mlruns") else place, "mlflow").resolve()
        options = {"tracking_uri": f"sqlite:///{store}/mlflow.db", "run_name": name}
        if not given.get("tracking_uri"):  # an experiment of a store of the user's is not only of this run
            store.mkdir(parents=True, exist_ok=True)
            options["artifact_location"] = f"{store}/artifacts"
    known = yaml.safe_load((folder / IDS).read_text()) if (folder / IDS).is_file() else {}
    for base, option in CONTINUED.items():
        if issubclass(kind, base) and kind.__name__ in known:
            options[option] = str(known[kind.__name__])
    return options
