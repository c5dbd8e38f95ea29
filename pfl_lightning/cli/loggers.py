"""The loggers of a run."""

from inspect import signature
from pathlib import Path
from pydoc import locate
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from pfl_lightning.callbacks import MetricsTable
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.errors import PflError, one_line


def loggers_of(setting: Any, folder: Path, rounds: int | None) -> list[Logger]:
    """The loggers of a run, whose folder they leave to the run: it is not theirs to choose.

    Args:
        setting: ``trainer.logger``: null or true for TensorBoard, false for none, or the user's own.
        folder: The run's folder. A logger of the user's writes below it unless its ``save_dir`` says otherwise.
        rounds: For a run that continues: the rounds of which TensorBoard keeps all that was logged. Among this are the
            pictures that were drawn at the end of the run so far.

    Returns:
        TensorBoard or the user's own, and the table ``metrics.csv`` beside them; nothing for false.

    Raises:
        PflError: If a logger cannot be made.
    """
    if setting is False:
        return []
    if setting in (None, True):
        place = folder.parent.parent, folder.parent.name, folder.name
        purge = None if rounds is None else rounds + 1
        loggers: list[Logger] = [TensorBoardLogger(*place, default_hp_metric=False, purge_step=purge)]
    else:
        loggers = [_logger(each, folder) for each in (setting if isinstance(setting, list) else [setting])]
    return [*loggers, MetricsTable(folder)]


def _logger(setting: Namespace, folder: Path) -> Logger:
    """A logger of the user's."""
    usual = signature(locate(setting.class_path)).parameters.get("save_dir")  # type: ignore[arg-type]
    if usual is not None and setting.init_args.get("save_dir") == usual.default:
        setting = setting.clone()
        setting.init_args.save_dir = str(folder)
    parser = PflParser()
    parser.add_argument("--logger", type=Logger)
    try:
        logger: Logger = parser.instantiate(Namespace(logger=setting)).logger
    except Exception as error:  # whatever the class raises, such as for a package that is not installed
        reason = one_line(error.__cause__ or error)
        raise PflError(f"trainer.logger: {setting.class_path} cannot be made: {reason}") from error
    if isinstance(logger, CSVLogger) and Path(logger.log_dir).resolve() == folder.resolve():
        raise PflError(
            f"trainer.logger: its file would be metrics.csv of the run in '{folder}'; allowed: another save_dir"
        )
    return logger
