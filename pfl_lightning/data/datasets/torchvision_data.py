import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from torchvision.datasets import VisionDataset

from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets.official import warn_unless_official
from pfl_lightning.data.download import Remote, fetch
from pfl_lightning.data.idx import read_idx
from pfl_lightning.data.labelled import LabelledData, check_classes
from pfl_lightning.data.reading import reading
from pfl_lightning.errors import PflError, one_line


class TorchvisionData(FederatedDataModule):
    """A data set that torchvision unpacks; it is downloaded where none of its files is there.

    A download is always verified. Files that are there are used as they are, and not read by torchvision, which runs
    what a pickle names; one warning tells if they are not the official data set.

    Attributes:
        source: torchvision's class.
        folder: Where it keeps the unpacked files, below its root.
        official_sizes: Samples in the official files, training and test.
        official_classes: Classes in them.
        classes: Which of them are used, from the first to before the second; None for all.
    """

    source: ClassVar[type[VisionDataset]]
    folder: ClassVar[str]
    official_sizes: tuple[int, int]
    official_classes: int
    classes: tuple[int, int] | None = None

    @property
    @abstractmethod
    def archives(self) -> Sequence[Remote]:
        """What is downloaded."""

    @property
    @abstractmethod
    def archive_folder(self) -> Path:
        """Where torchvision looks for the archives."""

    @property
    @abstractmethod
    def files(self) -> tuple[Sequence[str], Sequence[str]]:
        """Names of the unpacked files that are read, of the training and of the test samples."""

    @abstractmethod
    def read(self, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Read a split.

        Args:
            names: Its files.

        Returns:
            Images, uint8 ``[samples, channels, height, width]``, and labels counted from 0, int64 ``[samples]``.

        Raises:
            PflError: If one of them cannot be read.
        """

    @property
    def path(self) -> Path:
        """The folder with the unpacked files."""
        return Path(self.root).expanduser() / self.folder

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Arguments of torchvision's class in addition to root and split."""
        return {}

    def reading(self, name: str) -> AbstractContextManager[None]:
        """Turn errors while a file is read into one line that names it."""
        archives = [archive.name for archive in self.archives]
        archive = next((own for own in archives if own.startswith(name)), archives[0])
        remedy = f"unpack {archive} there again, or give a data.root without these files for a download"
        return reading(self.path / name, remedy)

    def read_idx(self, name: str, shape: tuple[int, ...] = ()) -> Tensor:
        """Read a file of samples of this shape, uint8 ``[samples, *shape]``.

        Raises:
            PflError: If it cannot be read.
        """
        with self.reading(name):
            return read_idx(self.path / name, shape)

    def choose(self, classes: tuple[int, int] | None) -> None:
        """Use only the classes from the first (inclusive) to the second (exclusive); for constructors.

        Raises:
            PflError: If there are no such classes.
        """
        self.classes, self.num_classes = classes, check_classes(classes, self.official_classes)

    def prepare_data(self) -> None:
        """Download and unpack the data set if none of its files is there.

        Raises:
            PflError: If that fails.
        """
        files = [self.path / name for names in self.files for name in names]
        if any(path.exists() for path in files):
            return
        try:
            for archive in self.archives:
                fetch(archive, self.archive_folder)
        except (PflError, OSError) as error:
            raise PflError(
                f"data.root: no {type(self).__name__} in '{self.root}' (looked for '{files[0]}'), and "
                f"the download failed: {one_line(error)}; or put that file there by hand, or give the folder that "
                "torchvision calls root"
            ) from error
        self._unpack()

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read both splits from the folder.

        Raises:
            PflError: If the files are missing or one of them cannot be read.
        """
        self.prepare_data()
        train, test = (self._read(names) for names in self.files)
        warn_unless_official(self, (train, test), self.official_sizes)
        return train.keep(self.classes), test.keep(self.classes)

    def _unpack(self) -> None:
        """Let torchvision unpack the archives; what it leaves half unpacked must not pass for the data set."""
        before = set(self.path.glob("*"))
        try:
            self.source(str(self.root), download=True, **self.arguments)
        except BaseException as error:
            for path in set(self.path.glob("*")) - before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not isinstance(error, Exception):
                raise
            names = ", ".join(archive.name for archive in self.archives)
            where = f"{names} in '{self.archive_folder}'"
            raise PflError(f"data.root: cannot unpack {where} ({one_line(error)})") from error

    def _read(self, names: Sequence[str]) -> LabelledData:
        """A split with all of its classes."""
        split = LabelledData(*self.read(names))
        with self.reading(names[-1]):
            split.check_targets(self.official_classes)
        return split
