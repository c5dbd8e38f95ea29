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
    """Classes and users of the samples that are shared out among the clients.

    Attributes:
        classes: Class of each sample, ``[samples]``.
        users: Who each sample comes from, ``[samples]``; None where the data set does not know.
    """

    classes: Indices
    users: Indices | None = None

    def cut(self, place: int) -> list["Labels"]:
        """The samples before a place, and those from it on."""
        pieces = (slice(place), slice(place, None))
        return [Labels(self.classes[piece], None if self.users is None else self.users[piece]) for piece in pieces]


class Population(NamedTuple):
    """Who shares a data set.

    Attributes:
        num_clients: Number of clients.
        times: Mean seconds that each of them computes in a round, ``[num_clients]``.
    """

    num_clients: int
    times: NDArray[np.float64]


class Partition(ABC):
    """Splits the samples of a data set among clients; no sample goes to two of them."""

    min_size: int = 1

    @abstractmethod
    def split(
        self, splits: Sequence[Labels], num_classes: int, population: Population, rng: Generator
    ) -> Sequence[Parts]:
        """Split samples, of which there are enough for ``min_size`` each; see ``__call__``."""

    def __call__(
        self, splits: Sequence[Labels], num_classes: int, population: Population, rng: Generator
    ) -> Sequence[Parts]:
        """Split samples among clients.

        Args:
            splits: The training samples, then others that each client gets in like shares, such as the test samples.
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
                    f"{len(split.classes)} {name} samples for each client; allowed: 1 to {len(split.classes) // least}"
                )
        return self.split(splits, num_classes, population, rng)
