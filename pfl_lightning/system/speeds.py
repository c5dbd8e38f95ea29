"""Computation time of each client in a round, in simulated seconds: the settings of SRPFL's experiments.

Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078.

Differs: the paper writes "exponential with parameter lambda"; in its experiments that is the mean, as we call it
(docs/evidence/derivations.md, Expected times).
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from pfl_lightning.bounds import ClosedUnitInterval, PositiveFloat, Seed
from pfl_lightning.errors import PflError

Times = NDArray[np.float64]


class Speeds(ABC):
    """Computation time of every client; a pure function of the seed and the round.

    It is the time for a round, or with ``data.time_per: sample`` the time for each training sample.

    Args:
        seed: Seed of the times; independent of ``seed_everything``, so that all runs have the same speeds.
    """

    def __init__(self, seed: Seed = 0) -> None:
        self.seed = seed

    @abstractmethod
    def times(self, round_index: int, num_clients: int) -> Times:
        """Computation time of each client in a round, ``[num_clients]``."""

    def mean_times(self, num_clients: int) -> Times:
        """Mean computation time of each client over all rounds, ``[num_clients]``."""
        return self.times(0, num_clients)


class FixedSpeeds(Speeds):
    """Times that are drawn once and stay fixed."""

    _drawn: Times | None = None

    def times(self, round_index: int, num_clients: int) -> Times:
        """The same times in every round, ``[num_clients]``."""
        if self._drawn is None or len(self._drawn) != num_clients:
            # numpy's legacy generator: with the seeds 1 and 400 it draws the times of SRPFL's figures
            self._drawn = self.draw(RandomState(self.seed), num_clients)
        return self._drawn

    @abstractmethod
    def draw(self, random: RandomState, num_clients: int) -> Times:
        """Draw the time of each client, ``[num_clients]``."""


class FixedExponential(FixedSpeeds):
    """T_i ~ Exp(mean), drawn once and kept: the fixed speeds of SRPFL's Fig. 3.

    Args:
        mean: Mean computation time, in simulated seconds.
        seed: Seed of the times alone.
    """

    def __init__(self, mean: PositiveFloat = 1.0, seed: Seed = 0) -> None:
        super().__init__(seed)
        self.mean = mean

    def draw(self, random: RandomState, num_clients: int) -> Times:
        """One exponential draw per client."""
        return random.exponential(self.mean, num_clients)


class TwoPopulation(FixedSpeeds):
    """Fast clients and stragglers, each exponential with its own mean, drawn once: SRPFL's Fig. 8, column 3.

    Args:
        stragglers: Share of slow clients.
        fast_mean: Mean time of a fast client, in simulated seconds.
        slow_mean: Mean time of a straggler, in simulated seconds.
        seed: Seed of the times alone.
    """

    def __init__(
        self,
        stragglers: ClosedUnitInterval = 0.1,
        fast_mean: PositiveFloat = 0.1,
        slow_mean: PositiveFloat = 10.0,
        seed: Seed = 0,
    ) -> None:
        super().__init__(seed)
        self.stragglers = stragglers
        self.fast_mean = fast_mean
        self.slow_mean = slow_mean

    def draw(self, random: RandomState, num_clients: int) -> Times:
        """Draw the fast clients, then the stragglers, then shuffle them."""
        fast = int(num_clients * (1 - self.stragglers) + 1e-9)
        times = [random.exponential(self.fast_mean, fast), random.exponential(self.slow_mean, num_clients - fast)]
        return random.permutation(np.concatenate(times))


class UniformTime(Speeds):
    """Every client takes the same time; by default one second, so the clock counts rounds.

    Args:
        seconds: The time, in simulated seconds.
    """

    def __init__(self, seconds: PositiveFloat = 1.0) -> None:
        super().__init__()
        self.seconds = seconds

    def times(self, round_index: int, num_clients: int) -> Times:
        """The same time for all, ``[num_clients]``."""
        return np.full(num_clients, self.seconds)


class DynamicExponential(Speeds):
    """T_i ~ Exp(m_i), drawn again in each round, with m_i ~ U[low, high] drawn once: SRPFL's Figs. 5 and 6.

    Args:
        low: Smallest mean time, in simulated seconds. Default: ``high`` / number of clients, as in SRPFL.
        high: Largest mean time, in simulated seconds.
        seed: Seed of the times alone.

    Raises:
        PflError: If the smallest mean is larger than the largest.
    """

    def __init__(self, low: PositiveFloat | None = None, high: PositiveFloat = 1.0, seed: Seed = 0) -> None:
        super().__init__(seed)
        if low is not None and low > high:
            raise PflError(f"data.speeds.low: {low} is not possible; allowed: up to data.speeds.high, {high}")
        self.low = low
        self.high = high

    def times(self, round_index: int, num_clients: int) -> Times:
        """New times for this round, ``[num_clients]``."""
        draws = np.random.default_rng((self.seed, round_index)).standard_exponential(num_clients)
        return self.mean_times(num_clients) * draws

    def mean_times(self, num_clients: int) -> Times:
        """Means of the clients' own distributions, ``[num_clients]``."""
        low = self.high / num_clients if self.low is None else self.low
        return RandomState(self.seed).uniform(low, self.high, num_clients)
