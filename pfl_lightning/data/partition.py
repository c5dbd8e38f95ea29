"""How a data set is split among clients: a matrix of shares, by which the samples of every class are cut.

One matrix cuts the training and the test samples, so a client is tested on the classes that it trains on.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from jsonargparse.typing import PositiveFloat, PositiveInt
from numpy.random import Generator
from numpy.typing import NDArray

from pfl_lightning.errors import PflError

Labels = NDArray[np.int64]
Shares = NDArray[np.float64]
Parts = list[NDArray[np.int64]]


class Partition(ABC):
    """Splits the samples of a data set among clients."""

    min_size: int = 1

    @abstractmethod
    def shares(self, class_sizes: NDArray[np.int64], num_clients: int, rng: Generator) -> Shares:
        """Draw which share of every class each client gets.

        Args:
            class_sizes: Training samples of each class, ``[classes]``.
            num_clients: Number of clients.
            rng: Source of randomness.

        Returns:
            Shares whose rows sum to 1, ``[classes, clients]``.
        """

    def __call__(self, splits: Sequence[Labels], num_classes: int, num_clients: int, rng: Generator) -> list[Parts]:
        """Split samples among clients.

        Args:
            splits: Labels of the training samples, then of any other splits that follow the same shares.
            num_classes: Number of classes.
            num_clients: Number of clients.
            rng: Source of randomness.

        Returns:
            For each split, one array of sample indices per client. No client has fewer than ``min_size`` training
            samples, or none in another split.

        Raises:
            PflError: If there are not enough samples for the clients.
        """
        for number, labels in enumerate(splits):
            least = self.min_size if number == 0 else 1
            if num_clients * least > len(labels):
                name = "training" if number == 0 else "test"
                raise PflError(
                    f"data.num_clients: {num_clients} is not possible with at least {least} of the {len(labels)} "
                    f"{name} samples for each client; allowed: 1 to {len(labels) // least}"
                )
        shares = self.shares(np.bincount(splits[0], minlength=num_classes), num_clients, rng)
        parts: list[Parts] = []
        for number, labels in enumerate(splits):
            parts.append(cut(labels, shares, rng))
            fill(parts[-1], labels, shares, self.min_size if number == 0 else 1)
            if number == 0:
                shares = _held_shares(shares, labels, parts[0])
        return parts


class IID(Partition):
    """Every client gets an equal share of every class: no heterogeneity."""

    def shares(self, class_sizes: NDArray[np.int64], num_clients: int, rng: Generator) -> Shares:
        """Equal shares."""
        return np.full((len(class_sizes), num_clients), 1 / num_clients)


class ClassShards(Partition):
    """Every client gets shards of a few different classes (SRPFL, section 6.1).

    Each class is cut into equal shards, as many as it has clients; all classes have the same number of clients, or
    differ by one where the numbers do not divide. Clients in random order take the classes that the fewest have taken.

    Args:
        classes_per_client: Number of different classes that a client holds.
    """

    def __init__(self, classes_per_client: PositiveInt = 3) -> None:
        self.classes_per_client = classes_per_client

    def shares(self, class_sizes: NDArray[np.int64], num_clients: int, rng: Generator) -> Shares:
        """Equal shares of each client's own classes.

        Raises:
            PflError: If a client shall hold more classes than there are, or the shards are too few for all classes.
        """
        classes, wanted = len(class_sizes), self.classes_per_client
        if wanted > classes:
            raise PflError(
                f"data.partition.classes_per_client: {wanted} is not possible; allowed: 1 to {classes}, "
                "the number of classes"
            )
        if wanted * num_clients < classes:
            raise PflError(
                f"data.partition.classes_per_client: {wanted} leaves classes without a client when there are "
                f"{num_clients} clients; allowed: {-(-classes // num_clients)} to {classes}"
            )
        holds = np.zeros((classes, num_clients))
        for client in rng.permutation(num_clients):
            chosen = np.lexsort((rng.random(classes), holds.sum(1)))[:wanted]
            holds[chosen, client] = 1
        return holds / holds.sum(1, keepdims=True)


class Dirichlet(Partition):
    """Every class is shared out by Dirichlet proportions (Wang et al. 2020; DePRL, section 5.2).

    A client that has its fair number of samples gets nothing of the classes that follow, which caps the sizes. The
    draw is repeated until every client has ``min_size`` samples; after ``TRIES`` draws the last one is repaired by
    moving samples from the largest clients, so that this always ends.

    Args:
        alpha: Concentration; the smaller, the fewer classes a client holds.
        min_size: Least number of training samples of a client, the validation share included.
    """

    TRIES = 100

    def __init__(self, alpha: PositiveFloat = 0.3, min_size: PositiveInt = 10) -> None:
        self.alpha, self.min_size = alpha, min_size

    def shares(self, class_sizes: NDArray[np.int64], num_clients: int, rng: Generator) -> Shares:
        """Balanced Dirichlet proportions of each class."""
        for _ in range(self.TRIES):
            shares = self._draw(class_sizes, num_clients, rng)
            if (class_sizes @ shares).min() >= self.min_size:
                break
        return shares

    def _draw(self, class_sizes: NDArray[np.int64], num_clients: int, rng: Generator) -> Shares:
        shares = np.zeros((len(class_sizes), num_clients))
        sizes = np.zeros(num_clients)
        for label, size in enumerate(class_sizes):
            hungry = sizes < class_sizes.sum() / num_clients
            hungry |= not hungry.any()  # what follows are classes without samples
            proportions = rng.dirichlet(np.full(num_clients, self.alpha)) * hungry
            if not proportions.sum():  # a tiny alpha can put all its weight on one full client
                proportions = hungry / 1.0
            shares[label] = proportions / proportions.sum()
            sizes += size * shares[label]
        return shares


def cut(labels: Labels, shares: Shares, rng: Generator) -> Parts:
    """Cut the shuffled samples of every class by the shares; a count differs from its share by less than one.

    Args:
        labels: Label of each sample, ``[samples]``.
        shares: Rows that sum to 1, ``[classes, clients]``.
        rng: Source of randomness.

    Returns:
        One array of sample indices per client.
    """
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(shares.shape[1])]
    for label, row in enumerate(shares):
        members = rng.permutation(np.flatnonzero(labels == label))
        # the random offset gives the left-over samples of every class to other clients; 1e-9 absorbs float error
        ends = np.floor(row.cumsum() * len(members) + rng.random() * (1 - 1e-6) + 1e-9).astype(np.int64)
        for client, piece in enumerate(np.split(members, np.minimum(ends[:-1], len(members)))):
            pieces[client].append(piece)
    return [np.concatenate(piece) for piece in pieces]


def fill(parts: Parts, labels: Labels, shares: Shares, least: int) -> None:
    """Move samples from the largest clients to those with too few, in place, where possible of their own classes.

    Args:
        parts: Sample indices of each client; enough in all for ``least`` each.
        labels: Label of each sample, ``[samples]``.
        shares: Share of each class, ``[classes, clients]``.
        least: Samples that every client shall have.
    """
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < least):
        while sizes[client] < least:
            donor, place = _find_sample(parts, labels, shares[:, client], sizes * (sizes > least))
            parts[client] = np.append(parts[client], parts[donor][place])
            parts[donor] = np.delete(parts[donor], place)
            sizes[client] += 1
            sizes[donor] -= 1


def _find_sample(parts: Parts, labels: Labels, wanted: Shares, sizes: NDArray[np.int64]) -> tuple[int, int]:
    """The largest donor's sample of the class that is wanted most, and where it is; donors have a size."""
    for label in np.argsort(-wanted, kind="stable"):
        for donor in np.argsort(-sizes, kind="stable"):
            places = np.flatnonzero(labels[parts[donor]] == label) if sizes[donor] else np.zeros(0, dtype=np.int64)
            if len(places):
                return int(donor), int(places[0])
    raise AssertionError("no client has a sample to spare")


def _held_shares(shares: Shares, labels: Labels, parts: Parts) -> Shares:
    """The shares without those of classes of which a client got no sample; a class that nobody has stays as it is."""
    held = np.stack([np.bincount(labels[part], minlength=len(shares)) > 0 for part in parts], axis=1)
    kept = np.where(held.any(1, keepdims=True), shares * held, shares)
    return kept / kept.sum(1, keepdims=True)
