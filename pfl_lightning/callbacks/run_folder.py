"""Where the files of a run are, for its callbacks."""

from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

CHECKPOINTS = "checkpoints"


def folder_of(trainer: pl.Trainer) -> Path:
    """The folder in which a run has its tables and checkpoints; all processes must call this together.

    It is that of a ``RunSetup``, whatever its loggers are, and in ``pfl test`` that of the ``EvaluationTable``. Without
    these it is the folder of the first logger, in the same place as Lightning's own checkpoints, or else
    ``default_root_dir``.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if folder := getattr(callback, "run_folder", None):
            return Path(folder)
    logger = trainer.logger
    if logger is None or isinstance(logger, TensorBoardLogger | CSVLogger):
        return Path(trainer.log_dir or trainer.default_root_dir)
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    folder = Path(logger.save_dir or trainer.default_root_dir, str(logger.name), version)
    return trainer.strategy.broadcast(folder)


def continues(trainer: pl.Trainer) -> bool:
    """Whether a run continues from a checkpoint of its own folder; all processes must call this together."""
    folder, checkpoint = folder_of(trainer), trainer.ckpt_path
    return checkpoint is not None and Path(checkpoint).resolve().parent.parent == folder.resolve()
