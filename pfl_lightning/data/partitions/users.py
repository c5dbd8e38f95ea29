from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.data.partitions.partition import Indices, Labels, Partition, Parts, Population
from pfl_lightning.errors import PflError


class NaturalUsers(Partition):
    """Every client is one user of the data set, such as a writer or a role in a play; users are drawn at random.

    Paper: Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, arXiv:1812.01097.

    Args:
        min_samples: Minimum number of samples of a user, training and test together.
    """

    min_size = 0  # users that have samples are counted below

    def __init__(self, min_samples: PositiveInt = 1) -> None:
        self.min_samples = min_samples
        self.last: Sequence[int] = ()  # users that are the last clients, in this order

    def split(
        self, splits: Sequence[Labels], num_classes: int, population: Population, rng: Generator
    ) -> Sequence[Parts]:
        """Choose users, and give each client all samples of its user.

        Raises:
            PflError: If the data set has no users, or too few of them.
        """
        if any(split.users is None for split in splits):
            raise PflError(
                "data.partition: NaturalUsers needs a data set with users; take a partition by class, such as "
                "ClassShards"
            )
        eligible = self.eligible(splits)
        if population.num_clients > len(eligible):
            users = "users that training has left" if population.is_new else "users"
            raise PflError(
                f"{population.option} must be at most {len(eligible)}, the {users} with at least {self.min_samples} "
                f"samples (data.partition.min_samples), got {population.num_clients}"
            )
        others = np.setdiff1d(eligible, self.last) if len(self.last) else eligible
        chosen = rng.choice(others, population.num_clients - len(self.last), replace=False)
        chosen = np.concatenate([chosen, np.array(self.last, dtype=chosen.dtype)])
        return [_samples_of(chosen, split.users) for split in splits if split.users is not None]

    def eligible(self, splits: Sequence[Labels]) -> Indices:
        """The users that can be clients: they have samples for training and testing, and ``min_samples`` in all."""
        users = [split.users for split in splits if split.users is not None]
        most = max(int(split.max(initial=0)) for split in users) + 1
        counts = np.stack([np.bincount(split, minlength=most) for split in users])  # [splits, users]
        return np.flatnonzero((counts[:2] > 0).all(0) & (counts.sum(0) >= self.min_samples))

    def for_new_clients(self, labels: Labels, splits: Sequence[Indices], trained: Indices, tested: Indices) -> Parts:
        """All samples of the users that took no part; see ``Partition.for_new_clients``."""
        assert labels.users is not None, "the run's clients are users"
        seen = labels.users[np.concatenate([trained, tested])]
        return [split[~np.isin(labels.users[split], seen)] for split in splits]


def _samples_of(chosen: Indices, users: Indices) -> Parts:
    """Sample indices of each chosen user."""
    order = np.argsort(users, kind="stable")
    starts, ends = (np.searchsorted(users[order], chosen, side=side) for side in ("left", "right"))
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]
