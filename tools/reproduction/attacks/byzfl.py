"""ByzFL's split, in which attackers hold nothing that honest clients lack."""

import numpy as np
from numpy.random import Generator

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.data import Indices, Population, Shares, SortedBlocks

OF_ATTACKERS = 0.01


class HonestBlocks(SortedBlocks):
    """``SortedBlocks`` among the first clients; the others, who attack, get a hundredth of all samples, like cards.

    Args:
        similarity: See ``SortedBlocks``.
        honest: Number of the first clients.
    """

    def __init__(self, similarity: ClosedUnitInterval = 0.1, honest: PositiveInt = 10) -> None:
        super().__init__(similarity)
        self.honest = honest

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """See ``ClassPartition``."""
        attackers = population.num_clients - self.honest
        blocks = super().shares(class_sizes, population._replace(num_clients=self.honest), rng)
        rest = np.full((len(class_sizes), attackers), OF_ATTACKERS / attackers)
        return np.hstack([(1 - OF_ATTACKERS) * blocks, rest])
