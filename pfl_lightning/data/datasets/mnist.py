from typing import Any, Literal

import torch
from torch import Tensor
from torchvision import datasets

from pfl_lightning.data.datasets.torchvision_data import TorchvisionData
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import ImageTransform

CONSTANTS = {"constants": (0.1307, 0.3081), "symmetric": (0.5, 0.5)}  # mean and standard deviation


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
        self.normalize, self.size = normalize, size
        self.input_shape = (1, size, size)
        mean, std = CONSTANTS.get(normalize, (0.0, 1.0))
        self.mean: list[float] | Tensor = [mean]
        self.std: list[float] | Tensor = [std]

    def read(self, train: bool) -> tuple[Tensor, Tensor]:
        """One grey channel, resized bilinearly if ``size`` is not 28."""
        from torchvision.transforms.v2.functional import resize

        images, labels = super().read(train)
        return images if self.size == 28 else resize(images, [self.size, self.size], antialias=True), labels

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Read both splits, and compute the statistics of each pixel if they are needed.

        Raises:
            PflError: If the files are missing or one of them cannot be read.
        """
        train, test = super().load()
        if self.normalize == "pixels":
            greys = torch.cat([train.inputs, test.inputs]).float()
            std, mean = torch.std_mean(greys, dim=0, correction=0)
            self.mean, self.std = mean / 255, (std + 0.001) / 255
        return train, test

    def transform(self) -> ImageTransform:
        """Normalise as ``normalize`` says."""
        return ImageTransform(self.mean, self.std)


class FashionMNIST(MNIST):
    """Fashion-MNIST: 70,000 grey images of clothes, 28 x 28 pixels, 10 classes, normalised like MNIST.

    Paper: Xiao et al., "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017,
    arXiv:1708.07747; used by FedMac, arXiv:2107.05330, and DePRL, arXiv:2312.10815, whose code has MNIST's constants.
    """

    source = datasets.FashionMNIST
    folder = "FashionMNIST/raw"
