"""MNIST and the data sets like it: grey images of digits, letters and clothes."""

import gzip
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchvision import datasets

from pfl_lightning.bounds import NonNegativeInt, PositiveInt
from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets.torchvision_data import TorchvisionData
from pfl_lightning.data.labelled import LabelledData, check_classes
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.reading import reading
from pfl_lightning.data.transforms import ImageTransform
from pfl_lightning.errors import PflError

CONSTANTS = {"constants": (0.1307, 0.3081), "symmetric": (0.5, 0.5)}  # mean and standard deviation
OFFICIAL = {  # training and test samples, number of classes, label of the first class in the files
    "balanced": ((112_800, 18_800), 47, 0),
    "letters": ((124_800, 20_800), 26, 1),
    "byclass": ((697_932, 116_323), 62, 0),
}


class MNIST(TorchvisionData):
    """MNIST: 70,000 handwritten digits of 28 x 28 pixels, 10 classes.

    Paper: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proceedings of the IEEE 1998; used
    by FedMac, arXiv:2107.05330.

    Args:
        normalize: ``constants`` for MNIST's usual mean 0.1307 and standard deviation 0.3081, of pixels in [0, 1];
            ``pixels`` for (x - mean) / (std + 0.001), with the mean and the standard deviation of each pixel over all
            images, training and test, of grey values from 0 to 255 (pFedMe's code, which FedMac follows);
            ``symmetric`` for pixels in [-1, 1] (PFLlib), ``none`` for pixels in [0, 1] (Flower's niid_bench).
        size: Height and width in pixels; 32 resizes the images while they are loaded, as DePRL does.
        kwargs: See ``FederatedDataModule``.
    """

    input_shape = (1, 28, 28)
    source = datasets.MNIST
    folder = "MNIST/raw"
    pattern = "*-ubyte"
    official_sizes = (60_000, 10_000)
    num_classes = 10

    def __init__(
        self,
        normalize: Literal["constants", "pixels", "symmetric", "none"] = "constants",
        size: Literal[28, 32] = 28,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.normalize = normalize
        self.size = size
        self.input_shape = (1, size, size)
        mean, std = CONSTANTS.get(normalize, (0.0, 1.0))
        self.mean: list[float] | Tensor = [mean]
        self.std: list[float] | Tensor = [std]

    def read(self, train: bool) -> tuple[Tensor, ...]:
        """One grey channel, resized bilinearly if ``size`` is not 28."""
        from torchvision.transforms.v2.functional import resize

        images, *labels = super().read(train)
        return images if self.size == 28 else resize(images, [self.size, self.size], antialias=True), *labels

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read both splits, and compute the statistics of each pixel if they are needed.

        Raises:
            PflError: If the files are missing or one of them cannot be read.
        """
        train, test = super().load()
        if self.normalize == "pixels":
            greys = train.join(test).inputs.float()
            std, mean = torch.std_mean(greys, dim=0, correction=0)
            self.mean = mean / 255
            self.std = (std + 0.001) / 255
        return train, test

    def transform(self) -> ImageTransform:
        """Normalise as ``normalize`` says."""
        return ImageTransform(self.mean, self.std)


class MNISTWriters(MNIST):
    """MNIST in which every user is a writer, as QMNIST's labels of the same digits say.

    They are in a folder of the root, such as torchvision's ``QMNIST/raw``: ``qmnist-train-labels-idx2-int`` and
    ``qmnist-test-labels-idx2-int``, or the same with ``.gz``. No writer is in both of MNIST's parts, which are joined.

    Paper: Yadav and Bottou, "Cold Case: The Lost MNIST Digits", NeurIPS 2019, arXiv:1905.10498.
    """

    usual_partition = NaturalUsers

    def load(self) -> tuple[LabelledData, LabelledData | None]:
        """Read all samples; a share of each writer's samples, or of the writers, is for testing.

        Raises:
            PflError: If the files are missing or one of them cannot be read.
        """
        train, test = super().load()
        return train.join(test), None

    def read(self, train: bool) -> tuple[Tensor, ...]:
        """MNIST's images and labels, and the writer of each.

        Raises:
            PflError: If QMNIST's labels are missing, or are not those of the images.
        """
        images, labels = super().read(train)
        name = f"qmnist-{'train' if train else 'test'}-labels-idx2-int"
        found = sorted(Path(self.root).glob(f"**/{name}*"))
        if not found:
            raise PflError(
                f"data.root: no writers in '{self.root}' (looked for '{name}.gz' in its folders); put QMNIST's labels "
                "there, which are on github.com/facebookresearch/qmnist"
            )
        with reading(found[0], "get it again from github.com/facebookresearch/qmnist"):
            return images, labels, writers(found[0], labels)


class FashionMNIST(MNIST):
    """Fashion-MNIST: 70,000 grey images of clothes, 28 x 28 pixels, 10 classes, normalised like MNIST.

    Paper: Xiao et al., "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017,
    arXiv:1708.07747; used by FedMac, arXiv:2107.05330, and DePRL, arXiv:2312.10815, whose code has MNIST's constants.
    """

    source = datasets.FashionMNIST
    folder = "FashionMNIST/raw"


def writers(path: Path, labels: Tensor) -> Tensor:
    """Writers of MNIST's digits, by QMNIST's labels of the same digits.

    Args:
        path: The file of QMNIST's labels, packed or not.
        labels: MNIST's labels, ``[samples]``.

    Returns:
        The number of each digit's writer, ``[samples]``.

    Raises:
        ValueError: If the classes are not MNIST's.
    """
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    numbers = np.frombuffer(content, dtype=">i4")[3:]  # behind the type and the two sizes
    rows = torch.from_numpy(numbers.reshape(-1, 8).astype(np.int64))[: len(labels)]  # QMNIST has more test digits
    if not rows[:, 0].equal(labels):
        raise ValueError("its classes are not those of MNIST's digits")
    return rows[:, 2]  # behind the class and the series of forms


class EMNIST(TorchvisionData):
    """EMNIST: handwritten digits and letters of 28 x 28 pixels, white on black.

    SRPFL uses the first ten classes: the digits in ``balanced`` (the paper), the letters a to j in ``letters`` (the
    authors' code). The lower-case a to j of ``byclass``, classes ``[36, 46]``, stand in for SRPFL's FEMNIST.

    Paper: Cohen et al., "EMNIST: an extension of MNIST to handwritten letters", IJCNN 2017, arXiv:1702.05373; used by
    SRPFL, arXiv:2206.02078.

    Differs: SRPFL's FEMNIST is cut from other scans of the same pages, black on white, and it is not normalised.

    Args:
        split: ``balanced`` has 47 classes (similar capital and small letters are merged), ``letters`` has 26
            (regardless of case), ``byclass`` has 62 (digits, capital letters, small letters).
        classes: Range of classes to use, from the first (inclusive) to the second (exclusive); null for all.
        kwargs: See ``FederatedDataModule``.

    Raises:
        PflError: If there are no such classes.
    """

    input_shape = (1, 28, 28)
    source = datasets.EMNIST
    folder = "EMNIST/raw"
    pattern = "*-ubyte"

    def __init__(
        self,
        split: Literal["balanced", "letters", "byclass"] = "balanced",
        classes: tuple[NonNegativeInt, PositiveInt] | None = (0, 10),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = partial(self.source, split=split)
        self.official_sizes, official_classes, self.first_label = OFFICIAL[split]
        self.classes = classes
        self.num_classes = check_classes(classes, official_classes)

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """One grey channel, upright: in the files, rows and columns are swapped."""
        images, labels = super().read(train)
        return images.mT.contiguous(), labels - self.first_label

    def transform(self) -> ImageTransform:
        """Normalise with MNIST's constants, as SRPFL does."""
        return ImageTransform([0.1307], [0.3081])


class Digits(FederatedDataModule):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels: real images without a download.

    A quarter of each class is the test split; it is the same in every run.
    """

    num_classes = 10
    input_shape = (1, 8, 8)

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read the digits from scikit-learn's own files."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        images = torch.from_numpy(digits.images / 16 * 255).round().to(torch.uint8)[:, None]
        targets = torch.from_numpy(digits.target).long()
        train, test = train_test_split(
            torch.arange(len(targets)).numpy(), test_size=0.25, stratify=targets, random_state=0
        )
        return LabelledData(images[train], targets[train]), LabelledData(images[test], targets[test])

    def transform(self) -> ImageTransform:
        """Centre and scale the grey values."""
        return ImageTransform(mean=[0.306], std=[0.376])
