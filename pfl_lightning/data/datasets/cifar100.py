from typing import Any

from jsonargparse.typing import NonNegativeInt, PositiveInt
from torchvision import datasets

from pfl_lightning.data.datasets.cifar10 import CIFAR10
from pfl_lightning.data.partitions import Dirichlet


class CIFAR100(CIFAR10):
    """CIFAR-100: 60,000 colour images of 32 x 32 pixels in 100 classes, the fine labels.

    Paper: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", technical report, University of Toronto,
    2009; used by SRPFL, arXiv:2206.02078, FedMac, arXiv:2107.05330, and DePRL, arXiv:2312.10815.

    FedMac's results fit ten classes only, so we read its data set as the first ten: ``classes: [0, 10]``.

    Differs: the constants of DePRL's code for normalising differ in the third digit.

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
