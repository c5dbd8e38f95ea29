from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pfl_lightning.errors import PflError

Indices = NDArray[np.int64]
Parts = list[Indices]


class Labels(NamedTuple):
    """Classes and users of the samples that are split among the clients.

    Attributes:
        classes: Class of each sample, ``[samples]``.
        users: User that each sample comes from, ``[samples]``; None if unknown.
    """

    classes: Indices
    users: Indices | None = None

    def cut(self, place: int) -> list["Labels"]:
        """Split into the samples before a position, and those from it on."""
        pieces = (slice(place), slice(place, None))
        return [Labels(self.classes[piece], None if self.users is None else self.users[piece]) for piece in pieces]


class Population(NamedTuple):
    """The clients among which a data set is split.

    Attributes:
        num_clients: Number of clients.
        times: Mean computation time of each client in a round, in simulated seconds, ``[num_clients]``.
    """

    num_clients: int
    times: NDArray[np.float64]


class Partition(ABC):
    """Splits the samples of a data set among clients; no sample goes to two clients."""

    min_size: int = 1

    @abstractmethod
    def split(
        self, splits: Sequence[Labels], num_classes: int, population: Population, rng: Generator
    ) -> Sequence[Parts]:
        """Split samples, of which there are at least ``min_size`` per client; see ``__call__``."""

    def __call__(
        self, splits: Sequence[Labels], num_classes: int, population: Population, rng: Generator
    ) -> Sequence[Parts]:
        """Split samples among clients.

        Args:
            splits: The training samples, then others to be split in the same proportions, such as the test samples.
            num_classes: Number of classes.
            population: The clients.
            rng: Source of randomness.

        Returns:
            For each split, one array of sample indices per client. No client has fewer than ``min_size`` training
            samples, or none in another split.

        Raises:
            PflError: If that is not possible.
        """
        for number, split in enumerate(splits):
            least = self.min_size if number == 0 else 1
            if population.num_clients * least > len(split.classes):
                name = "training" if number == 0 else "test"
                raise PflError(
                    f"data.num_clients: {population.num_clients} is not possible with at least {least} of the "
                    f"{len(split.classes)} {name} samples per client; allowed: 1 to {len(split.classes) // least}"
                )
        return self.split(splits, num_classes, population, rng)
