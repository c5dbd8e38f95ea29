from typing import Any

import torch
from torch import Tensor
from torchvision import datasets

from pfl_lightning.data.datasets.torchvision_data import TorchvisionData
from pfl_lightning.data.transforms import ImageTransform


class CIFAR10(TorchvisionData):
    """CIFAR-10: 60,000 colour images of 32 x 32 pixels in 10 classes (SRPFL, section 6.2).

    Args:
        augment: Whether training images are cropped (padding 4) and mirrored at random.
        kwargs: See ``FederatedDataModule``.
    """

    num_classes = 10
    input_shape = (3, 32, 32)
    source = datasets.CIFAR10
    folder = "cifar-10-batches-py"
    official_sizes = (50_000, 10_000)

    def __init__(self, augment: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.augment = augment

    @staticmethod
    def images(data: datasets.CIFAR10) -> Tensor:
        """Channels first."""
        return torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()

    def transform(self) -> ImageTransform:
        """Normalise with SRPFL's constants; crop and mirror while training."""
        return ImageTransform((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), padding=4 if self.augment else 0)
