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

    def take(self, places: Indices) -> "Labels":
        """The labels of some samples, in this order."""
        return Labels(self.classes[places], None if self.users is None else self.users[places])


class Population(NamedTuple):
    """The clients among which a data set is split.

    Attributes:
        num_clients: Number of clients.
        times: Mean computation time of each client in a round, in simulated seconds, ``[num_clients]``.
        is_new: Whether they are new to a finished run.
    """

    num_clients: int
    times: NDArray[np.float64]
    is_new: bool = False

    @property
    def option(self) -> str:
        """The option that says how many there are."""
        return "data.new_clients" if self.is_new else "data.num_clients"


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
            splits: The training samples, then others to be split in the same proportions: test samples, and samples for
                validation.
            num_classes: Number of classes.
            population: The clients.
            rng: Source of randomness.

        Returns:
            For each split, one array of sample indices per client. No client has fewer than ``min_size`` training
            samples, or none for testing.

        Raises:
            PflError: If that cannot be done.
        """
        for number, split in enumerate(splits):
            least = (self.min_size, min(self.min_size, 1), 0)[number]
            if population.num_clients * least > len(split.classes):
                name = "training" if number == 0 else "test"
                raise PflError(
                    f"{population.option} must be at most {len(split.classes) // least}, with at least {least} of the "
                    f"{len(split.classes)} {name} samples per client, got {population.num_clients}"
                )
        dealt = self.split(splits, num_classes, population, rng)
        self._check(dealt, splits, population.num_clients)
        return dealt

    def _check(self, dealt: Sequence[Parts], splits: Sequence[Labels], clients: int) -> None:
        """Refuse what a partition of a user's own must not return."""
        name = f"data.partition: {type(self).__name__} must return"
        sizes = [*map(len, dealt)]
        if sizes != [clients] * len(splits):
            raise PflError(f"{name} samples of {clients} clients in each of {len(splits)} splits, got {sizes}")
        if not all(map(len, dealt[0])):
            raise PflError(f"{name} a training sample of each client or more, got a client without")
        for split, parts in zip(splits, dealt, strict=True):
            samples = np.sort(np.concatenate(parts))
            if wrong := [sample for sample in (*samples[:1], *samples[-1:]) if not 0 <= sample < len(split.classes)]:
                raise PflError(f"{name} samples from 0 to {len(split.classes) - 1}, got {wrong[0]}")
            if (samples[1:] == samples[:-1]).any():
                raise PflError(f"{name} each sample once, to one client, got one twice")

    def for_new_clients(self, labels: Labels, splits: Sequence[Indices], trained: Indices, tested: Indices) -> Parts:
        """Which samples clients get that are new to a finished run: they train on what others trained on.

        So nobody is tested on a sample that the run has seen in training.

        Args:
            labels: Of all samples of the data set.
            splits: The samples that were split among the run's clients: those for training, then others.
            trained: The samples on which the run's clients trained or chose a model.
            tested: The samples on which they were tested.

        Returns:
            The samples to split among the new clients, as in ``splits``.
        """
        return [np.sort(trained), np.sort(tested)]
