from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveInt
from torchvision import datasets

from pfl_lightning.data.datasets.cifar10 import CIFAR10
from pfl_lightning.data.partitions import Dirichlet


class CIFAR100(CIFAR10):
    """CIFAR-100: 60,000 colour images of 32 x 32 pixels in 100 classes, the fine labels (SRPFL, section 6.2).

    FedMac's is the first ten classes alone (section 11.2).

    Differs: DePRL's constants for normalising differ in the third digit (section 5.1).

    Args:
        classes: Only the classes from the first to before the second, such as ``[0, 10]``; all by default.
        augment: Whether training images are cropped (padding 4) and mirrored at random.
        kwargs: See ``FederatedDataModule``.

    Raises:
        PflError: If there are no such classes.
    """

    source = datasets.CIFAR100
    folder = "cifar-100-python"
    num_classes = official_classes = 100
    usual_partition = Dirichlet  # a few classes for each of a few clients would leave classes out
    mean, std = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)

    def __init__(
        self, classes: tuple[NonNegativeInt, PositiveInt] | None = None, augment: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(augment=augment, **kwargs)
        self.choose(classes)
