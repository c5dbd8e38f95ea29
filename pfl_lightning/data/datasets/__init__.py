from pfl_lightning.data.datasets.cifar10 import CIFAR10
from pfl_lightning.data.datasets.cifar100 import CIFAR100
from pfl_lightning.data.datasets.cinic10 import CINIC10
from pfl_lightning.data.datasets.digits import Digits
from pfl_lightning.data.datasets.emnist import EMNIST
from pfl_lightning.data.datasets.femnist import FEMNIST
from pfl_lightning.data.datasets.harbox import HARBox
from pfl_lightning.data.datasets.linear_representation import LinearRepresentation
from pfl_lightning.data.datasets.mnist import MNIST, FashionMNIST
from pfl_lightning.data.datasets.sent140 import Sent140
from pfl_lightning.data.datasets.shakespeare import Shakespeare
from pfl_lightning.data.datasets.synthetic import Synthetic

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CINIC10",
    "EMNIST",
    "FEMNIST",
    "MNIST",
    "Digits",
    "FashionMNIST",
    "HARBox",
    "LinearRepresentation",
    "Sent140",
    "Shakespeare",
    "Synthetic",
]
