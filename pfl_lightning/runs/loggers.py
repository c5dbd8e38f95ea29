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


def make_loggers(setting: Any, table: MetricsTable, rounds: int | None) -> list[Logger]:
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
        purge_step = None if rounds is None else rounds + 1
        save_dir = folder.parent.parent
        return [Board(save_dir, folder.parent.name, folder.name, default_hp_metric=False, purge_step=purge_step), table]
    settings = setting if isinstance(setting, list) else [setting]
    return [*(item if isinstance(item, Logger) else _make_logger(item, folder) for item in settings), table]


def begin_runs(loggers: Sequence[Logger], settings: Settings, folder: Path, is_new: bool) -> None:
    """Begin the loggers' runs with the settings, such as ``model.local.lr``, and remember which runs these are.

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


def end_runs(loggers: Sequence[Logger]) -> None:
    """End the runs of W&B, which would go on in the next run of this process."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()


def _make_logger(setting: Mapping[str, Any], folder: Path) -> Logger:
    """A logger of the user's, which begins its run."""
    kind: type = resolve_name(setting["class_path"])
    parameters = signature(kind).parameters
    options = dict(setting.get("init_args", {}))
    for name, value in _run_options(kind, folder, options).items():
        if name in parameters and options.get(name) == parameters[name].default:
            options[name] = value
    parser = SettingsParser()
    parser.add_argument("--logger", type=Logger)
    try:
        logger: Logger = parser.instantiate(parser.parse_object({"logger": {**setting, "init_args": options}})).logger
        getattr(logger, "experiment", None)  # W&B without an account fails here
    except Exception as error:  # whatever the class raises, such as for a package that is not installed
        cause = error.__cause__ or error
        name = kind.__name__
        if name in EXTRAS and isinstance(cause, ModuleNotFoundError):
            command = f'uv pip install "pfl_lightning[{EXTRAS[name]}]"'
            raise PflError(f"trainer.logger: {name} needs {EXTRAS[name]}: {command}") from error
        raise PflError(f"trainer.logger: {name} cannot be made: {one_line(cause)}") from error
    return logger


def _run_options(kind: type, folder: Path, options: Mapping[str, Any]) -> dict[str, str]:
    """Options with which a logger continues its run, and writes below a run's folder."""
    run_name = str(Path(*folder.parts[-2:]))
    run_options = {"save_dir": str(folder)}
    if issubclass(kind, WandbLogger):
        run_options["name"] = run_name
    if issubclass(kind, MLFlowLogger):
        save_dir = options.get("save_dir")
        store = Path(folder if save_dir in (None, "./mlruns") else save_dir, "mlflow").resolve()
        run_options = {"tracking_uri": f"sqlite:///{store}/mlflow.db", "run_name": run_name}
        if not options.get("tracking_uri"):  # an experiment of a store of the user's is not only of this run
            store.mkdir(parents=True, exist_ok=True)
            run_options["artifact_location"] = f"{store}/artifacts"
    ids = yaml.safe_load((folder / IDS).read_text()) if (folder / IDS).is_file() else {}
    for base, option in CONTINUED.items():
        if issubclass(kind, base) and kind.__name__ in ids:
            run_options[option] = str(ids[kind.__name__])
    return run_options
