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
        expected = Path(self.root) / self.folder
        if expected.is_dir():
            return
        try:
            self.source(self.root, download=True)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PflError(
                f"data.root: no {type(self).__name__} in '{self.root}' (looked for '{expected}'), and the download "
                f"failed ({reason}); give the folder that torchvision calls root"
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

    def _read(self, train: bool) -> LabelledData:
        try:
            data: Any = _unverified(self.source)(self.root, train=train)
            return LabelledData(self.images(data), torch.as_tensor(data.targets, dtype=torch.int64))
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            folder = Path(self.root) / self.folder
            raise PflError(f"data.root: cannot read {type(self).__name__} in '{folder}' ({reason})") from error

    @staticmethod
    @abstractmethod
    def images(data: Any) -> Tensor:
        """The images that torchvision read, as uint8 ``[samples, channels, height, width]``."""


def _unverified(source: type[VisionDataset]) -> type[VisionDataset]:
    """The same reader without its check of md5 sums, which accepts the complete official files only."""
    return type(source.__name__, (source,), {"_check_integrity": lambda self: True})
