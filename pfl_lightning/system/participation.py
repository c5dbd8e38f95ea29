import random

import numpy as np
from jsonargparse.typing import PositiveInt
from numpy.typing import NDArray

from pfl_lightning.errors import PflError
from pfl_lightning.seeding import seed_of
from pfl_lightning.system.speeds import Times


class Participation:
    """Who takes part in a round: a pool sampled from all clients, and of the pool the fastest.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078,
    Algorithm 1.

    Args:
        pool_size: Clients sampled in each round, without replacement; all of them when not given.
    """

    def __init__(self, pool_size: PositiveInt | None = None) -> None:
        self.pool_size = pool_size
        self.cohort_size: int | None = None
        self.cohort_samples: float | None = None

    def check(self, num_clients: int) -> None:
        """Refuse a pool that is larger than the population.

        Raises:
            PflError: If it is.
        """
        if self.pool_size is not None and self.pool_size > num_clients:
            raise PflError(
                f"data.participation.pool_size: {self.pool_size} is not possible; allowed: 1 to {num_clients}, the "
                "clients that train"
            )

    def resize(self, cohort_size: int | None = None, cohort_samples: float | None = None) -> None:
        """Let only the fastest clients of the pool take part from now on; the whole pool when both are None.

        Args:
            cohort_size: How many.
            cohort_samples: Or as many of the fastest as it takes to hold so many training samples.
        """
        self.cohort_size, self.cohort_samples = cohort_size, cohort_samples

    def cohort(self, seed: int, round_index: int, counts: NDArray[np.int64], times: Times) -> tuple[list[int], Times]:
        """Choose the clients that train; a pure function of the arguments and of the cohort's size.

        Args:
            seed: Seed of the experiment.
            round_index: Rounds completed before this one.
            counts: Training samples of every client that can be chosen.
            times: Seconds that each of them computes in this round; of two equally fast ones the lower id goes first.

        Returns:
            Ids from the fastest to the slowest, and their computation times in simulated seconds.
        """
        num_clients = len(counts)
        size = num_clients if self.pool_size is None else self.pool_size
        draw = random.Random(seed_of(seed, "pool", round_index))
        pool = np.arange(num_clients) if size == num_clients else np.sort(draw.sample(range(num_clients), size))
        times = times[pool]
        fastest = np.argsort(times, kind="stable")[: self.cohort_size]
        if self.cohort_samples is not None:
            held = counts[pool[fastest]].cumsum()
            fastest = fastest[: 1 + np.searchsorted(held, self.cohort_samples - 1e-6)]  # a mean is rarely exact
        return pool[fastest].tolist(), times[fastest]
