"""Where the files of a run are."""

import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from filelock import FileLock, Timeout
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from pfl_lightning.callbacks.evaluation import is_extra
from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.errors import PflError

CHECKPOINTS, LOCK, METRICS, CLIENTS = "checkpoints", ".lock", "metrics.csv", "clients.csv"


class RunFolder:
    """The folder of a run of ``pfl fit``, which one process at a time can use.

    It is a context. Leaving it unlocks the folder; a folder that was made for the run and has no checkpoint, since the
    run never got that far, is removed with all that is in it.

    Args:
        path: The folder, which exists.
        made: The folders that were made for this run, innermost first; none if the run continues.
    """

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        self.path, self.made = path, made
        self.lock = FileLock(path / LOCK)

    def __enter__(self) -> "RunFolder":
        """Lock the folder.

        Raises:
            PflError: If another process uses it, or it cannot be written.
        """
        file = self.path / LOCK
        try:
            self.lock.acquire(timeout=0)
            file.write_text(str(os.getpid()))
        except Timeout:
            process = f"process {file.read_text()}".strip()
            raise PflError(f"'{self.path}' is in use by {process}; allowed: one process at a time") from None
        except OSError as error:
            raise PflError(
                f"'{self.path}' cannot be written: {error.strerror}; allowed: a run folder that can"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock the folder; remove it if nothing was saved."""
        self.lock.release()
        if self.made and not any((self.path / CHECKPOINTS).glob("*.ckpt")):
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):  # a folder may hold another run by now
                for folder in self.made[1:]:
                    folder.rmdir()


def new_folder(parent: Path) -> RunFolder:
    """Make the folder of a new run, ``version_N`` with the next free N.

    Args:
        parent: Where the runs of this method and data set are.

    Raises:
        PflError: If it cannot be made.
    """
    number = 1 + max((version for version, _ in versions(parent)), default=-1)
    while True:
        path = parent / f"version_{number}"
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True)
        except OSError as error:
            if not path.exists():
                what = f"'{path}' cannot be made: {error.strerror}"
                raise PflError(f"trainer.default_root_dir: {what}; allowed: a folder that can be written") from None
            number += 1  # another run started at the same moment
        else:
            return RunFolder(path, made)


def versions(parent: Path) -> list[tuple[int, Path]]:
    """The runs in a folder, oldest first, with their numbers."""
    named = [(folder.name.removeprefix("version_"), folder) for folder in parent.glob("version_*")]
    return sorted((int(number), folder) for number, folder in named if number.isdecimal())


def folder_of(trainer: pl.Trainer) -> Path:
    """The folder in which a run has its tables and checkpoints; all processes must call this together.

    It is that of a ``Session``, whatever its loggers are. Without one it is the folder of the first logger, in the same
    place as Lightning's own checkpoints, or else ``default_root_dir``.
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
    """Whether a run continues from a checkpoint of its own folder."""
    folder, checkpoint = folder_of(trainer), trainer.ckpt_path
    return checkpoint is not None and Path(checkpoint).resolve().parent.parent == folder.resolve()


def save_table(table: RoundCsv, checkpoint: dict[str, Any]) -> None:
    """Have a table on disk before a checkpoint of its last round, which remembers what this is."""
    table.sync()
    checkpoint.setdefault("tables", {})[table.path.name] = table.round


def last_round(name: str, checkpoint: Mapping[str, Any]) -> int | None:
    """The last round of a table when a checkpoint was saved; None if the run had no such table."""
    last: int | None = checkpoint.get("tables", {}).get(name)
    return last


def continue_table(trainer: pl.Trainer, table: RoundCsv, last: int | None) -> None:
    """Cut a table back to what a longer run has of it at the round of the checkpoint.

    Args:
        trainer: The trainer of a run that continues.
        table: The table.
        last: The last round that it had when the checkpoint was saved; None if it had none.
    """
    table.cut(trainer.global_step)
    if last is not None and (table.round is None or table.round < last):
        ends = "is empty" if table.round is None else f"ends with round {table.round}"
        warnings.warn(f"'{table.path}' {ends}, but had round {last} when the checkpoint was saved", stacklevel=2)
    if is_extra(trainer):
        table.cut(trainer.global_step - 1)
