from typing import Any

from torchvision import datasets

from pfl_lightning.bounds import NonNegativeInt, PositiveInt
from pfl_lightning.data.datasets.cifar10 import CIFAR10
from pfl_lightning.data.labelled import check_classes
from pfl_lightning.data.partitions.dirichlet import Dirichlet


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
    mean, std = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)

    def __init__(
        self, classes: tuple[NonNegativeInt, PositiveInt] | None = None, augment: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(augment=augment, **kwargs)
        self.classes, self.num_classes = classes, check_classes(classes, CIFAR100.num_classes)
