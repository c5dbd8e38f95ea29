from pfl_lightning.data.datamodule import FederatedDataModule
from pfl_lightning.data.datasets import CIFAR10, MNIST, Digits, FashionMNIST
from pfl_lightning.data.partition import IID, ClassShards, Dirichlet, Partition
from pfl_lightning.data.rounds import Judgement, Round

__all__ = [
    "CIFAR10",
    "IID",
    "MNIST",
    "ClassShards",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "FederatedDataModule",
    "Judgement",
    "Partition",
    "Round",
]
