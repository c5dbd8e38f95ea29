from pfl_lightning.data.datamodule import FederatedDataModule, federated
from pfl_lightning.data.datasets.agnews import AGNews
from pfl_lightning.data.datasets.celeba import CelebA
from pfl_lightning.data.datasets.cifar import CIFAR10, CIFAR100
from pfl_lightning.data.datasets.cinic10 import CINIC10
from pfl_lightning.data.datasets.fcube import FCUBE
from pfl_lightning.data.datasets.femnist import FEMNIST
from pfl_lightning.data.datasets.flowers102 import Flowers102
from pfl_lightning.data.datasets.harbox import HARBox
from pfl_lightning.data.datasets.heart_disease import HeartDisease
from pfl_lightning.data.datasets.linear_representation import LinearRepresentation
from pfl_lightning.data.datasets.medmnist import MedMNIST
from pfl_lightning.data.datasets.mnist import EMNIST, MNIST, Digits, FashionMNIST, MNISTWriters
from pfl_lightning.data.datasets.pamap2 import PAMAP2
from pfl_lightning.data.datasets.reddit import Reddit
from pfl_lightning.data.datasets.sent140 import Sent140
from pfl_lightning.data.datasets.shakespeare import Shakespeare
from pfl_lightning.data.datasets.shapes import Shapes
from pfl_lightning.data.datasets.svhn import SVHN
from pfl_lightning.data.datasets.synthetic import Synthetic
from pfl_lightning.data.datasets.tcga_brca import TCGABRCA
from pfl_lightning.data.datasets.tiny_imagenet import TinyImageNet
from pfl_lightning.data.datasets.ucihar import UCIHAR
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.own.arrays import Arrays
from pfl_lightning.data.own.hugging_face import HuggingFace
from pfl_lightning.data.own.image_folders import ImageFolders
from pfl_lightning.data.own.libsvm import LibSVM
from pfl_lightning.data.own.own_data import OwnData
from pfl_lightning.data.own.raw_data import RawData
from pfl_lightning.data.own.series import Series
from pfl_lightning.data.own.table import Table
from pfl_lightning.data.partitions.by_class import ClassPartition, Shares
from pfl_lightning.data.partitions.dirichlet import Dirichlet, EqualDirichlet, GroupedDirichlet
from pfl_lightning.data.partitions.partition import Indices, Labels, Partition, Parts, Population
from pfl_lightning.data.partitions.shards import (
    IID,
    ClassShards,
    ConsecutiveClasses,
    EqualSizes,
    GroupedShards,
    LogNormalSizes,
    Sizes,
    SortedBlocks,
    SpeedGroups,
    UnequalClassShards,
    UniformSizes,
)
from pfl_lightning.data.partitions.users import NaturalUsers
from pfl_lightning.data.poison import LabelFlip, PixelTrigger, Poison
from pfl_lightning.data.rounds import Arrivals, EvalBatch, Round
from pfl_lightning.data.skews import Blur, Colour, Noise, Rotation, Skew
from pfl_lightning.data.transforms import ImageTransform, Numbers, Tokens

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CINIC10",
    "EMNIST",
    "FCUBE",
    "FEMNIST",
    "IID",
    "MNIST",
    "PAMAP2",
    "SVHN",
    "TCGABRCA",
    "UCIHAR",
    "AGNews",
    "Arrays",
    "Arrivals",
    "Blur",
    "CelebA",
    "ClassPartition",
    "ClassShards",
    "Colour",
    "ConsecutiveClasses",
    "Digits",
    "Dirichlet",
    "EqualDirichlet",
    "EqualSizes",
    "EvalBatch",
    "FashionMNIST",
    "FederatedDataModule",
    "Flowers102",
    "GroupedDirichlet",
    "GroupedShards",
    "HARBox",
    "HeartDisease",
    "HuggingFace",
    "ImageFolders",
    "ImageTransform",
    "Indices",
    "LabelFlip",
    "LabelledData",
    "Labels",
    "LibSVM",
    "LinearRepresentation",
    "LogNormalSizes",
    "MNISTWriters",
    "MedMNIST",
    "NaturalUsers",
    "Noise",
    "Numbers",
    "OwnData",
    "Partition",
    "Parts",
    "PixelTrigger",
    "Poison",
    "Population",
    "RawData",
    "Reddit",
    "Rotation",
    "Round",
    "Sent140",
    "Series",
    "Shakespeare",
    "Shapes",
    "Shares",
    "Sizes",
    "Skew",
    "SortedBlocks",
    "SpeedGroups",
    "Synthetic",
    "Table",
    "TinyImageNet",
    "Tokens",
    "UnequalClassShards",
    "UniformSizes",
    "federated",
]
