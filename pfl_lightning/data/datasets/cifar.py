from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision import datasets

from pfl_lightning.bounds import NonNegativeInt, PositiveInt
from pfl_lightning.data.datasets.torchvision_data import TorchvisionData
from pfl_lightning.data.labelled import check_classes, whole_numbers
from pfl_lightning.data.partitions.dirichlet import Dirichlet
from pfl_lightning.data.reading import read_pickle, reading
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
    source: type[datasets.CIFAR10] = datasets.CIFAR10
    folder = "cifar-10-batches-py"
    pattern = "*_batch*"
    labels = "labels"  # their name in a batch
    official_sizes = (50_000, 10_000)
    num_classes = 10
    mean: ClassVar[tuple[float, float, float]] = (0.485, 0.456, 0.406)
    std: ClassVar[tuple[float, float, float]] = (0.229, 0.224, 0.225)

    def __init__(self, augment: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.augment = augment

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """All batches of a split, one after the other."""
        names = self.source.train_list if train else self.source.test_list
        images, labels = zip(*[self._batch(self.path / name) for name, _ in names], strict=True)
        return torch.from_numpy(np.concatenate(images)).view(-1, *self.input_shape), torch.cat(labels)

    def transform(self) -> ImageTransform:
        """Normalise with the constants of SRPFL's code; crop and mirror while training."""
        return ImageTransform(self.mean, self.std, padding=4 if self.augment else 0)

    def _batch(self, path: Path) -> tuple[NDArray[np.uint8], Tensor]:
        with reading(path, f"delete '{self.path}' for a new download"):
            batch = read_pickle(path)
            images = batch["data"]
            labels = whole_numbers(batch[self.labels])
            if len(images) != len(labels):  # the labels of all later images would be wrong
                raise ValueError(f"{len(images)} images with {len(labels)} labels")
        return images, labels


class CIFAR100(CIFAR10):
    """CIFAR-100: 60,000 colour images of 32 x 32 pixels in 100 classes, the fine labels.

    Paper: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, University of Toronto,
    2009; used by SRPFL, arXiv:2206.02078, FedMac, arXiv:2107.05330, and DePRL, arXiv:2312.10815.

    FedMac's results fit ten classes only, so we read its data set as the first ten: ``classes: [0, 10]``.

    Differs: the constants of DePRL's code for normalising differ in the third digit.

    Args:
        classes: Range of classes to use, such as ``[0, 10]`` for the classes 0 to 9. Default: all.
        augment: Randomly crop (padding 4) and flip training images.
        kwargs: See ``FederatedDataModule``.

    Raises:
        PflError: If there are no such classes.
    """

    source = datasets.CIFAR100
    folder = "cifar-100-python"
    pattern = "train"
    labels = "fine_labels"
    num_classes = 100
    usual_partition = Dirichlet  # with 3 classes per client, 20 clients would leave classes out
    mean = (0.507, 0.487, 0.441)
    std = (0.267, 0.256, 0.276)

    def __init__(
        self, classes: tuple[NonNegativeInt, PositiveInt] | None = None, augment: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(augment=augment, **kwargs)
        self.classes = classes
        self.num_classes = check_classes(classes, CIFAR100.num_classes)
