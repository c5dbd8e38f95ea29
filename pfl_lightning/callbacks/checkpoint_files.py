from pathlib import Path
from typing import Any

from lightning.fabric.plugins import TorchCheckpointIO

from pfl_lightning.files import copy, is_intact, replace, save
from pfl_lightning.methods import read_checkpoint

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints straight into their folder, not to a temporary folder first, and reads only intact ones."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a file that is on disk when this returns; see ``files.save``."""
        save(checkpoint, Path(path))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a file of plain values and tensors, onto the CPU; see ``read_checkpoint``."""
        return read_checkpoint(path)


class CheckpointFiles:
    """The checkpoints of a run: the last one, the one before it and the best one, all of them plain files.

    A round is written to a temporary file, which then takes its name or names. So each file is complete at all times.
    The best one comes first: a kill between the two leaves a ``best.ckpt`` that is ahead of ``last.ckpt``, and the
    resumed run comes to the same round again.

    Args:
        folder: Where they are.

    Attributes:
        written: The temporary file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, folder / ".last.tmp"

    def become_best(self, also_last: bool) -> None:
        """Make the round that was written the best one.

        Args:
            also_last: Whether it will become the last one, too, so that it has to be copied.

        Raises:
            OSError: If the copy cannot be written.
        """
        source = self.written
        if also_last:
            source = self.folder / ".best.tmp"
            copy(self.written, source)
        replace(source, self.folder / BEST)

    def become_last(self) -> None:
        """Make the round that was written the last one, and the last one the previous one if it is intact."""
        last = self.folder / LAST
        if is_intact(last):
            replace(last, self.folder / PREVIOUS)
        replace(self.written, last)

    def discard(self) -> None:
        """Remove the temporary file, if there is one."""
        self.written.unlink(missing_ok=True)
