import shutil
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchvision.datasets import VisionDataset

from pfl_lightning.data.datamodule import FederatedDataModule, LabelledData
from pfl_lightning.errors import PflError


class TorchvisionData(FederatedDataModule):
    """A data set that torchvision reads, and downloads where its folder is missing.

    A download is always verified. A folder that is there is used as it is; one warning tells if it is not the official
    data set.
    """

    source: ClassVar[type[VisionDataset]]
    folder: ClassVar[str]
    official_sizes: ClassVar[tuple[int, int]]

    def prepare_data(self) -> None:
        """Download the data set if its folder is missing.

        Raises:
            PflError: If that fails.
        """
        if self._is_there():
            return
        try:
            self.source(self.root, download=True)
        except Exception as error:
            shutil.rmtree(self.path, ignore_errors=True)  # torchvision makes the folder before it downloads
            raise PflError(
                f"data.root: no {type(self).__name__} in '{self.root}' (looked for '{self.path}'), and the download "
                f"failed ({_reason(error)}); give the folder that torchvision calls root"
            ) from error

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read both splits from the folder.

        Raises:
            PflError: If the folder is missing or a file in it cannot be read.
        """
        self.prepare_data()
        train, test = self._read(train=True), self._read(train=False)
        sizes = (len(train.targets), len(test.targets))
        if sizes != self.official_sizes:
            official = " and ".join(f"{size:,}" for size in self.official_sizes)
            warnings.warn(
                f"{type(self).__name__} in '{self.root}' is not the official data set: {sizes[0]:,} training and "
                f"{sizes[1]:,} test samples instead of {official}",
                stacklevel=2,
            )
        return train, test

    @property
    def path(self) -> Path:
        """The folder with the files."""
        return Path(self.root) / self.folder

    def _is_there(self) -> bool:
        return self.path.is_dir() and any(self.path.iterdir())

    def _read(self, train: bool) -> LabelledData:
        try:
            data: Any = _unverified(self.source)(self.root, train=train)
            images, targets = self.images(data), torch.as_tensor(data.targets, dtype=torch.int64)
        except Exception as error:
            what = f"{type(self).__name__} in '{self.path}'"
            raise PflError(f"data.root: cannot read {what}; delete it to load it anew ({_reason(error)})") from error
        if len(images) != len(targets) or not 0 <= targets.min() <= targets.max() < self.num_classes:
            raise PflError(
                f"data.root: {type(self).__name__} in '{self.path}' is damaged: {len(images)} images with "
                f"{len(targets)} labels of {int(targets.min())} to {int(targets.max())}"
            )
        return LabelledData(images, targets)

    @staticmethod
    @abstractmethod
    def images(data: Any) -> Tensor:
        """The images that torchvision read, as uint8 ``[samples, channels, height, width]``."""


def _unverified(source: type[VisionDataset]) -> type[VisionDataset]:
    """The same reader without its checks of md5 sums, which accept the complete official files only."""
    return type(source.__name__, (source,), {"_check_integrity": lambda self: True, "_load_meta": lambda self: None})


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
