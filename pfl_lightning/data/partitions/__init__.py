"""How a data set is split among clients: pure functions of labels, users, speeds and a generator."""

from pfl_lightning.data.partitions.base import Indices, Labels, Partition, Parts, Population
from pfl_lightning.data.partitions.by_class import ClassPartition, Shares
from pfl_lightning.data.partitions.dirichlet import Dirichlet, EqualDirichlet, GroupedDirichlet
from pfl_lightning.data.partitions.shards import IID, ClassShards, ConsecutiveClasses, SpeedGroups, UnequalClassShards
from pfl_lightning.data.partitions.sizes import EqualSizes, LogNormalSizes, Sizes, UniformSizes
from pfl_lightning.data.partitions.users import NaturalUsers

__all__ = [
    "IID",
    "ClassPartition",
    "ClassShards",
    "ConsecutiveClasses",
    "Dirichlet",
    "EqualDirichlet",
    "EqualSizes",
    "GroupedDirichlet",
    "Indices",
    "Labels",
    "LogNormalSizes",
    "NaturalUsers",
    "Partition",
    "Parts",
    "Population",
    "Shares",
    "Sizes",
    "SpeedGroups",
    "UnequalClassShards",
    "UniformSizes",
]
