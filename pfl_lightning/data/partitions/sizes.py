from abc import ABC, abstractmethod

import numpy as np
from numpy.random import Generator

from pfl_lightning.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, Real
from pfl_lightning.data.partitions.base import Indices
from pfl_lightning.errors import PflError


class Sizes(ABC):
    """Number of samples that each client gets."""

    @abstractmethod
    def draw(self, num_clients: int, rng: Generator) -> Indices:
        """Samples of each client, ``[num_clients]``, at least 1 each."""


class EqualSizes(Sizes):
    """The same number for all clients; SRPFL's FEMNIST (arXiv:2206.02078) has 150.

    Args:
        samples: Samples per client.
    """

    def __init__(self, samples: PositiveInt = 150) -> None:
        self.samples = samples

    def draw(self, num_clients: int, rng: Generator) -> Indices:
        """The same number for all clients."""
        return np.full(num_clients, self.samples)


class UniformSizes(Sizes):
    """Uniform random integers; SRPFL's imbalanced FEMNIST (arXiv:2206.02078, Fig. 8) has 100 + U[0, 50].

    Args:
        low: Smallest number of samples.
        high: Largest number of samples.

    Raises:
        PflError: If the smallest is larger than the largest.
    """

    def __init__(self, low: PositiveInt = 100, high: PositiveInt = 150) -> None:
        if low > high:
            raise PflError(f"data.partition.sizes.low: {low} is not possible; allowed: 1 to {high} (sizes.high)")
        self.low, self.high = low, high

    def draw(self, num_clients: int, rng: Generator) -> Indices:
        """Uniform draws, both ends included."""
        return rng.integers(self.low, self.high, num_clients, endpoint=True)


class LogNormalSizes(Sizes):
    """``least`` + LogNormal(mean, sigma): many small clients and a few large ones.

    The defaults are those of FedRep's FEMNIST (Collins et al. 2021, arXiv:2102.07078, authors' code).

    Args:
        least: Minimum number of samples per client.
        mean: Mean of the logarithm of the additional samples.
        sigma: Standard deviation of that logarithm.
    """

    def __init__(self, least: NonNegativeInt = 100, mean: Real = 4.0, sigma: NonNegativeFloat = 1.0) -> None:
        self.least, self.mean, self.sigma = least, mean, sigma

    def draw(self, num_clients: int, rng: Generator) -> Indices:
        """Log-normal draws, rounded down."""
        draws = np.minimum(rng.lognormal(self.mean, self.sigma, num_clients), 1e12)  # avoids integer overflow
        sizes: Indices = np.maximum(1, self.least + draws.astype(np.int64))
        return sizes
