from pfl_lightning.data.datasets.cifar10 import CIFAR10
from pfl_lightning.data.datasets.digits import Digits
from pfl_lightning.data.datasets.mnist import MNIST, FashionMNIST

__all__ = ["CIFAR10", "MNIST", "Digits", "FashionMNIST"]
