"""The loggers of a run."""

import csv
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from pydoc import locate
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger

from pfl_lightning import processes
from pfl_lightning.callbacks import MetricsTable
from pfl_lightning.callbacks.board import Board
from pfl_lightning.callbacks.run_folder import METRICS
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.cli.trackers import CONTINUES, EXTRAS, of_kind, remember, usual_arguments
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.settings import Settings, flat

Cells = set[tuple[int, str]]  # round and name


def loggers_of(setting: Any, folder: Path, rounds: int | None) -> list[Logger]:
    """The loggers of a run, whose folder they leave to the run: it is not theirs to choose.

    Args:
        setting: ``trainer.logger``: null or true for TensorBoard, false for none, or the user's own.
        folder: The run's folder. A logger of the user's writes below it unless its ``save_dir`` says otherwise.
        rounds: For a run that continues: the rounds of which TensorBoard keeps all that was logged. Among this are the
            pictures that were drawn at the end of the run so far.

    Returns:
        TensorBoard or the user's own, and the table ``metrics.csv`` beside them; nothing for false. Only the first
        process of a run logs; the others have the table, which writes nothing there.

    Raises:
        PflError: If a logger cannot be made.
    """
    if setting is False:
        return []
    if processes.rank() > 0:
        return [MetricsTable(folder)]
    if setting in (None, True):
        place = folder.parent.parent, folder.parent.name, folder.name
        purge = None if rounds is None else rounds + 1
        loggers: list[Logger] = [Board(*place, default_hp_metric=False, purge_step=purge)]
    else:
        loggers = [_logger(each, folder) for each in (setting if isinstance(setting, list) else [setting])]
    if rounds is not None and (known := cells_after(folder / METRICS, rounds)):
        for logger in loggers:
            if of_kind(type(logger), CONTINUES):
                log_once(logger, known)
    return [*loggers, MetricsTable(folder)]


def tell_settings(loggers: list[Logger], settings: Settings, folder: Path, is_new: bool) -> None:
    """Begin the loggers' runs with the settings, such as ``model.lr``.

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
    remember(loggers, folder)


def cells_after(table: Path, rounds: int) -> Cells:
    """What a table has of the rounds after some, as the round and the column of each value."""
    if not table.is_file():
        return set()
    with table.open(newline="", errors="replace") as file:  # a line may be damaged
        later = [row for row in csv.DictReader(file) if row["round"].isdecimal() and int(row["round"]) > rounds]
    return {(int(row["round"]), name) for row in later for name, value in row.items() if value and name != "round"}


def log_once(logger: Logger, known: Cells) -> None:
    """Keep values from a logger that it has already and cannot take back: a resumed run comes to the same ones."""
    log_metrics = logger.log_metrics

    def log_others(metrics: Mapping[str, float], step: int | None = None) -> None:
        others = {name: value for name, value in metrics.items() if (step, name) not in known}
        if others.keys() - {"epoch"}:
            log_metrics(others, step)

    logger.log_metrics = log_others  # type: ignore[method-assign]


def _logger(setting: Namespace, folder: Path) -> Logger:
    """A logger of the user's."""
    kind: type = locate(setting.class_path)  # type: ignore[assignment]
    setting, parameters = setting.clone(), signature(kind).parameters
    given = setting.get("init_args", Namespace())
    for name, value in usual_arguments(kind, folder, given).items():
        if name in parameters and given.get(name) == parameters[name].default:
            given[name] = value
    parser = PflParser()
    parser.add_argument("--logger", type=Logger)
    try:
        logger: Logger = parser.instantiate(Namespace(logger=setting)).logger
        getattr(logger, "experiment", None)  # its run begins here, and cannot for W&B without an account
    except Exception as error:  # whatever the class raises, such as for a package that is not installed
        raise PflError(f"trainer.logger: {_reason(kind, error.__cause__ or error)}") from error
    if isinstance(logger, CSVLogger) and Path(logger.log_dir).resolve() == folder.resolve():
        raise PflError(
            f"trainer.logger: its file would be metrics.csv of the run in '{folder}'; allowed: another save_dir"
        )
    return logger


def _reason(kind: type, error: BaseException) -> str:
    """Why a logger cannot be made."""
    extra = of_kind(kind, EXTRAS)
    if extra and isinstance(error, ModuleNotFoundError):
        return f'{kind.__name__} needs {extra}: pip install "pfl_lightning[{extra}]"'
    return f"{kind.__name__} cannot be made: {one_line(error)}"
