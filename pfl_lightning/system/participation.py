import random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval, PositiveFloat, PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.seeding import random_bits, seed_of
from pfl_lightning.system.speeds import Times


class Participation:
    """Which clients take part in a round: a random pool of all clients, or only the fastest clients of the pool.

    The uploads of some participants can be dropped. Such a client has received the model, and the others wait for it;
    otherwise the round goes on as if it had not taken part: what it keeps stays as it was, and the others' weights sum
    to 1.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078,
    Algorithm 1. Deadlines: Nishio, Yonetani, "Client Selection for Federated Learning with Heterogeneous Resources in
    Mobile Edge", ICC 2019, arXiv:1804.08333.

    Args:
        pool_size: Number of clients sampled per round, without replacement. Default: all.
        dropout: Probability that a participant fails before it has uploaded; the others still wait for it.
        deadline: Simulated seconds of computation after which uploads come too late. Default: none.
    """

    def __init__(
        self,
        pool_size: PositiveInt | None = None,
        dropout: ClosedUnitInterval = 0.0,
        deadline: PositiveFloat | None = None,
    ) -> None:
        self.pool_size = pool_size
        self.dropout = dropout
        self.deadline = deadline
        self.cohort_size: int | None = None
        self.cohort_samples: float | None = None

    def check(self, num_clients: int) -> None:
        """Check the pool size.

        Raises:
            PflError: If the pool is larger than the population.
        """
        if self.pool_size is not None and self.pool_size > num_clients:
            raise PflError(
                f"data.participation.pool_size: {self.pool_size} is not possible; allowed: 1 to {num_clients}, the "
                "number of clients that train"
            )

    @property
    def can_drop(self) -> bool:
        """Whether uploads can be dropped."""
        return self.dropout > 0 or self.deadline is not None

    def resize(self, cohort_size: int | None = None, cohort_samples: float | None = None) -> None:
        """From now on, only the fastest clients of the pool take part; the whole pool if both are None.

        Args:
            cohort_size: Number of clients.
            cohort_samples: Alternatively, the number of training samples that these clients must hold in total.
        """
        self.cohort_size = cohort_size
        self.cohort_samples = cohort_samples

    def cohort(self, seed: int, round_index: int, counts: NDArray[np.int64], times: Times) -> tuple[list[int], Times]:
        """Choose the clients that train; a pure function of the arguments and of the cohort's size.

        Args:
            seed: Seed of the experiment.
            round_index: Rounds completed before this one.
            counts: Training samples of every client that can be chosen.
            times: Computation time of each of them in this round, in simulated seconds; ties go to the lower id.

        Returns:
            Ids, fastest client first, and their computation times in simulated seconds.
        """
        num_clients = len(counts)
        size = num_clients if self.pool_size is None else self.pool_size
        draw = random.Random(seed_of(seed, "pool", round_index))
        pool = np.arange(num_clients) if size == num_clients else np.sort(draw.sample(range(num_clients), size))
        times = times[pool]
        fastest = np.argsort(times, kind="stable")[: self.cohort_size]
        if self.cohort_samples is not None:
            held = counts[pool[fastest]].cumsum()
            fastest = fastest[: 1 + np.searchsorted(held, self.cohort_samples - 1e-6)]  # tolerance for float error
        return pool[fastest].tolist(), times[fastest]

    def drops(self, seed: int, round_index: int, ids: Tensor, times: Times) -> tuple[Tensor, Times]:
        """Whose uploads are dropped in a round; a pure function of the arguments.

        Args:
            seed: Seed of the experiment.
            round_index: Rounds completed before this one.
            ids: The participants, ``[cohort]``.
            times: Computation time of each of them, in simulated seconds.

        Returns:
            Whether each upload is dropped, and how long the others wait for it, in simulated seconds, ``[cohort]``.
        """
        draws = random_bits((seed, "dropout", round_index), ids, 1)[:, 0].double() * 2.0**-63  # in [0, 1]
        latest = np.inf if self.deadline is None else self.deadline
        return (draws < self.dropout) | torch.from_numpy(times > latest), np.minimum(times, latest)
