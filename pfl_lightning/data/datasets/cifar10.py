from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from pfl_lightning.data.datasets.torchvision_data import TorchvisionData
from pfl_lightning.data.download import Remote
from pfl_lightning.data.labelled import read_labels
from pfl_lightning.data.pickles import read_pickle
from pfl_lightning.data.transforms import ImageTransform


class CIFAR10(TorchvisionData):
    """CIFAR-10: 60,000 colour images of 32 x 32 pixels in 10 classes.

    Paper: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, University of Toronto,
    2009; used by SRPFL, arXiv:2206.02078, and DePRL, arXiv:2312.10815.

    Differs: DePRL's code normalises with the mean (0.4914, 0.4822, 0.4465) and the deviation (0.2023, 0.1994, 0.2010).

    Args:
        augment: Randomly crop (padding 4) and flip training images.
        kwargs: See ``FederatedDataModule``.
    """

    input_shape = (3, 32, 32)
    source: ClassVar[type[datasets.CIFAR10]] = datasets.CIFAR10
    folder = "cifar-10-batches-py"
    labels = "labels"  # their name in a batch
    official_sizes = (50_000, 10_000)
    num_classes = official_classes = 10
    mean: ClassVar[tuple[float, float, float]] = (0.485, 0.456, 0.406)
    std: ClassVar[tuple[float, float, float]] = (0.229, 0.224, 0.225)

    def __init__(self, augment: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.augment = augment

    @property
    def archives(self) -> list[Remote]:
        """One archive with all files."""
        return [Remote((self.source.url,), self.source.filename, self.source.tgz_md5)]

    @property
    def archive_folder(self) -> Path:
        """The root itself."""
        return Path(self.root).expanduser()

    @property
    def files(self) -> tuple[list[str], list[str]]:
        """The batches."""
        batches = self.source.train_list, self.source.test_list
        train, test = ([name for name, _ in files] for files in batches)
        return train, test

    def read(self, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """All batches of a split, one after the other."""
        images, labels = zip(*map(self._batch, names), strict=True)
        return torch.cat(images), torch.cat(labels)

    def transform(self) -> ImageTransform:
        """Normalise with the constants of SRPFL's code; crop and mirror while training."""
        return ImageTransform(self.mean, self.std, padding=4 if self.augment else 0)

    def _batch(self, name: str) -> tuple[Tensor, Tensor]:
        with self.reading(name):
            batch = read_pickle(self.path / name)
            images, labels = batch["data"], read_labels(batch[self.labels], self.official_classes)
            if not (isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[1:] == (3072,)):
                raise ValueError("no images of 3 x 32 x 32 bytes")
            if len(images) != len(labels):
                raise ValueError(f"{len(images)} images with {len(labels)} labels")
        return torch.tensor(images).view(-1, *self.input_shape), labels
