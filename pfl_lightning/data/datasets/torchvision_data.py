import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchvision.datasets import VisionDataset

from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets.official import warn_unless_official
from pfl_lightning.data.download import Remote, fetch
from pfl_lightning.data.labelled import LabelledData, check_classes
from pfl_lightning.errors import PflError, one_line


class TorchvisionData(FederatedDataModule):
    """A data set that torchvision unpacks and reads; it is downloaded where none of its files is there.

    A download is always verified. Files that are there are used as they are; one warning tells if they are not the
    official data set.

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
    def files(self) -> Sequence[str]:
        """Names of the unpacked files that are read."""

    @property
    def path(self) -> Path:
        """The folder with the unpacked files."""
        return Path(self.root).expanduser() / self.folder

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Arguments of torchvision's class in addition to root and split."""
        return {}

    @abstractmethod
    def images(self, data: Any) -> Tensor:
        """The images that torchvision read, as uint8 ``[samples, channels, height, width]``."""

    def labels(self, data: Any) -> Tensor:
        """The labels that torchvision read, counted from 0, int64 ``[samples]``."""
        return torch.as_tensor(data.targets, dtype=torch.int64)

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
        if any((self.path / name).exists() for name in self.files):
            return
        try:
            for archive in self.archives:
                fetch(archive, self.archive_folder)
        except (PflError, OSError) as error:
            raise PflError(
                f"data.root: no {type(self).__name__} in '{self.root}' (looked for '{self.path / self.files[0]}'), and "
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
        train, test = self._read(train=True), self._read(train=False)
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

    def _read(self, train: bool) -> LabelledData:
        what = f"{type(self).__name__} in '{self.path}'"
        try:
            data = _unverified(self.source)(str(self.root), train=train, **self.arguments)
            images, targets = self.images(data), self.labels(data)
        except Exception as error:
            raise PflError(
                f"data.root: cannot read {what}; delete it to download it again ({one_line(error)})"
            ) from error
        unknown = targets[(targets < 0) | (targets >= self.official_classes)]
        if len(images) != len(targets) or len(unknown) or not len(targets):
            raise PflError(
                f"data.root: {what} is damaged: {len(images)} images with {len(targets)} labels, "
                f"{len(unknown)} of them not from 0 to {self.official_classes - 1}; delete it to download it again"
            )
        return LabelledData(images, targets)


def _unverified(source: type[VisionDataset]) -> type[VisionDataset]:
    """The same reader without its checks of md5 sums, which accept the complete official files only."""
    return type(source.__name__, (source,), {"_check_integrity": lambda self: True, "_load_meta": lambda self: None})
