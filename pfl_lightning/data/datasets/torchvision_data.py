from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.download import process_lock
from pfl_lightning.data.labelled import LabelledData, warn_unless_official
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError, one_line

REMEDY = "delete it for a new download"


class TorchvisionData(FederatedDataModule):
    """A data set that torchvision downloads, verifies and unpacks where none of its files is there.

    Files that are there are used as they are; a warning says if they are not the official data set.

    Attributes:
        source: torchvision's class, which takes a root and ``train``.
        folder: Where it keeps the unpacked files, below its root.
        pattern: What their names match.
        official_sizes: Samples in the official files, training and test.
        classes: Which classes are used, from the first to before the second; None for all.
    """

    source: Callable[..., Any]
    folder: ClassVar[str]
    pattern: ClassVar[str]
    official_sizes: tuple[int, int]
    classes: tuple[int, int] | None = None

    def read(self, train: bool) -> tuple[Tensor, ...]:
        """Read the training or the test split, by default as torchvision reads grey images.

        Returns:
            Images, uint8 ``[samples, channels, height, width]``; labels counted from 0, int64 ``[samples]``; and the
            user of each sample, if they are known.
        """
        split = self.source(self.root, train=train)
        return split.data[:, None], split.targets

    @property
    def path(self) -> Path:
        """The folder with the unpacked files."""
        return Path(self.root) / self.folder

    def prepare_data(self) -> None:
        """Download and unpack the data set if none of its files is there.

        Raises:
            PflError: If that fails.
        """
        lock = self.path / "download.lock"  # files beside it may be incomplete
        if lock.exists() or not self._is_there():
            with process_lock(lock):
                if not self._is_there():
                    self._download()

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read both splits from the folder.

        Raises:
            PflError: If the files are missing or one of them cannot be read.
        """
        self.prepare_data()
        with reading(self.path, REMEDY):
            train, test = (LabelledData(*self.read(part)) for part in (True, False))
        warn_unless_official(f"{type(self).__name__} in '{self.root}'", (train, test), self.official_sizes)
        return train.keep(self.classes), test.keep(self.classes)

    def _is_there(self) -> bool:
        return any(self.path.glob(self.pattern))

    def _download(self) -> None:
        archive = Path(self.root) / getattr(self.source, "filename", "")
        for path in (archive, *self.path.rglob("*")):
            if path.is_symlink():
                raise PflError(f"data.root: '{path}' is a link, and a download would overwrite what it points to")
        try:
            self.source(self.root, download=True)
        except Exception as error:  # what unpacks archives raises almost everything
            raise PflError(
                f"data.root: no {type(self).__name__} in '{self.root}' (looked for '{self.path / self.pattern}'), and "
                f"the download failed: {one_line(error)}; or put them there by hand, or give the folder that "
                "torchvision calls root"
            ) from error
