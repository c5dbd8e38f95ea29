from torch import Tensor
from torchvision import datasets

from pfl_lightning.data.datasets.torchvision_data import TorchvisionData
from pfl_lightning.data.transforms import ImageTransform


class MNIST(TorchvisionData):
    """MNIST: 70,000 handwritten digits of 28 x 28 pixels."""

    num_classes = 10
    input_shape = (1, 28, 28)
    source = datasets.MNIST
    folder = "MNIST/raw"
    official_sizes = (60_000, 10_000)

    @staticmethod
    def images(data: datasets.MNIST) -> Tensor:
        """One grey channel."""
        return data.data[:, None]

    def transform(self) -> ImageTransform:
        """Normalise with MNIST's usual constants."""
        return ImageTransform([0.1307], [0.3081])


class FashionMNIST(MNIST):
    """Fashion-MNIST: 70,000 grey images of clothes, 28 x 28 pixels, 10 classes, normalised like MNIST (DePRL, 5.1)."""

    source = datasets.FashionMNIST
    folder = "FashionMNIST/raw"
