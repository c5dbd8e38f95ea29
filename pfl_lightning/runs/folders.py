"""Run folders: made, numbered, and locked by the process that uses them."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from pfl_lightning.callbacks.run_folder import CHECKPOINTS
from pfl_lightning.errors import MachineError

LOCK = ".lock"
ONE_MORE_TRY = 0.1  # s: where there is no flock, the first try can be spent on removing what a killed process has left


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
            MachineError: If another process uses it, or it cannot be written.
        """
        file = self.path / LOCK
        try:
            self.lock.acquire(timeout=ONE_MORE_TRY)
            if _holder(file) != str(os.getpid()):
                file.write_text(str(os.getpid()))
        except Timeout:
            process = f"process {_holder(file)}".strip()
            raise MachineError(f"'{self.path}' is in use by {process}; allowed: one process at a time") from None
        except OSError as error:
            if self.lock.is_locked:
                self.__exit__()
            problem = f"'{self.path}' cannot be written: {error.strerror}"
            raise MachineError(f"{problem}; allowed: a run folder that can") from None
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock the folder; remove it if nothing was saved."""
        with suppress(OSError):  # Windows removes no open file
            (self.path / LOCK).unlink()
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
        MachineError: If it cannot be made.
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
                raise MachineError(f"trainer.default_root_dir: {what}; allowed: a folder that can be written") from None
            number += 1  # another run started at the same moment
        else:
            return RunFolder(path, made)


def versions(parent: Path) -> list[tuple[int, Path]]:
    """The runs in a folder, oldest first, with their numbers."""
    named = [(folder.name.removeprefix("version_"), folder) for folder in parent.glob("version_*")]
    return sorted((int(number), folder) for number, folder in named if number.isdecimal())


def _holder(lock: Path) -> str:
    """The process in a file of a lock; where there is no flock, filelock has written it, with more about it below."""
    return lock.read_text().partition("\n")[0]
