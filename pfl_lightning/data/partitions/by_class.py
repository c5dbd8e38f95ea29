"""Partitions that only depend on classes: a matrix says which share of every class each client gets.

The same matrix splits the training and the test samples, so a client is tested on the classes that it trains on.
"""

import warnings
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pfl_lightning.data.partitions.partition import Indices, Labels, Partition, Parts, Population

Shares = NDArray[np.float64]


class ClassPartition(Partition):
    """Splits every class among the clients by a matrix of shares."""

    @abstractmethod
    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Draw the share of every class that each client gets.

        Args:
            class_sizes: Training samples of each class, ``[classes]``.
            population: The clients.
            rng: Source of randomness.

        Returns:
            Shares whose rows sum to at most 1, ``[classes, clients]``; the rest stays unused.
        """

    def split(
        self, splits: Sequence[Labels], num_classes: int, population: Population, rng: Generator
    ) -> Sequence[Parts]:
        """Split all samples by the same shares, and give every client at least its minimum."""
        shares = self.shares(np.bincount(splits[0].classes, minlength=num_classes), population, rng)
        parts: list[Parts] = []
        shortages: list[str] = []
        clients = f"{population.num_clients} {'new ' if population.is_new else ''}clients"
        for number, (labels, _) in enumerate(splits):
            parts.append(cut(labels, shares, rng))
            least, name = (self.min_size, "training") if number == 0 else (1, "test")
            if moved := fill(parts[-1], labels, shares, least):
                shortage = f"{len(moved)} of {clients} had fewer than {least} {name} samples"
                shortages.append(f"{shortage} ({sum(moved)} missing)")
            if number == 0:
                shares = _held_shares(shares, labels, parts[0])
        if shortages:
            self.report_repair(" and ".join(shortages))
        return parts

    def report_repair(self, shortage: str) -> None:
        """Warn that samples were moved to clients that had too few; called after it, at most once per split.

        Args:
            shortage: How many clients had how few samples, and how many samples they lacked.
        """
        warnings.warn(f"data.partition: {shortage}; as many were moved to them", stacklevel=2)


def cut(labels: Indices, shares: Shares, rng: Generator) -> Parts:
    """Split the shuffled samples of every class by the shares; rounding changes a count by less than one.

    Args:
        labels: Label of each sample, ``[samples]``.
        shares: Rows that sum to at most 1, ``[classes, clients]``.
        rng: Source of randomness.

    Returns:
        One array of sample indices per client.
    """
    clients = np.arange(shares.shape[1])
    samples = []
    owners = []
    for label, row in enumerate(shares):
        members = rng.permutation(np.flatnonzero(labels == label))
        # the random offset gives the left-over samples of each class to different clients; 1e-9 absorbs float error
        ends = np.floor(row.cumsum() * len(members) + rng.random() * (1 - 1e-6) + 1e-9).astype(np.int64)
        if row.sum() > 1 - 1e-9:
            ends[-1] = len(members)
        ends = np.minimum(ends, len(members))
        samples.append(members[: ends[-1]])
        owners.append(clients.repeat(np.diff(ends, prepend=0)))
    owner = np.concatenate(owners)
    by_client = np.concatenate(samples)[owner.argsort(kind="stable")]
    return np.split(by_client, np.bincount(owner, minlength=len(clients)).cumsum()[:-1])


def fill(parts: Parts, labels: Indices, shares: Shares, least: int) -> list[int]:
    """Move samples to clients that have too few, in place; if possible, samples of classes that they hold.

    Unused samples are moved first, then samples of the largest client.

    Args:
        parts: Sample indices of each client.
        labels: Label of each sample, ``[samples]``; there must be enough for ``least`` per client.
        shares: Share of each class, ``[classes, clients]``.
        least: Minimum number of samples of a client.

    Returns:
        How many samples each client with too few has been given.
    """
    missing = {client: least - len(part) for client, part in enumerate(parts) if len(part) < least}
    if not missing:
        return []
    piles = [*parts, np.delete(np.arange(len(labels)), np.concatenate(parts))]
    sizes = np.array([*map(len, parts), 2 * len(labels)])
    held = _count(piles, labels, len(shares))
    able = sizes * (sizes > least) * (held > 0)  # size of each pile that can give a sample of a class, [classes, piles]
    for client, number in missing.items():
        wanted = np.argsort(-shares[:, client], kind="stable")
        for _ in range(number):
            label, donor = next((label, pile) for label in wanted if able[label, pile := able[label].argmax()])
            place = (labels[piles[donor]] == label).argmax()
            piles[client] = np.append(piles[client], piles[donor][place])
            piles[donor] = np.delete(piles[donor], place)
            held[label, donor] -= 1
            size = able[label, donor] - 1
            able[:, donor] = size * (size > least) * (held[:, donor] > 0)
    parts[:] = piles[:-1]
    return list(missing.values())


def _count(parts: Parts, labels: Indices, classes: int) -> Indices:
    """Samples of every class in each part, ``[classes, parts]``."""
    owner = np.arange(len(parts)).repeat([*map(len, parts)])
    held = labels[np.concatenate(parts)] * len(parts) + owner
    return np.bincount(held, minlength=classes * len(parts)).reshape(classes, len(parts))


def _held_shares(shares: Shares, labels: Indices, parts: Parts) -> Shares:
    """The shares, set to 0 where a client got no sample of the class.

    If only clients without a share of a class got samples of it, it is divided equally among them. If no client got
    any, its shares do not change.
    """
    held = _count(parts, labels, len(shares)) > 0
    covered = shares * held
    covered = np.select([covered.any(1, keepdims=True), held.any(1, keepdims=True)], [covered, held], shares)
    handed_out = np.maximum(covered.sum(1, keepdims=True), np.finfo(float).tiny)
    scaled: Shares = covered * (shares.sum(1, keepdims=True) / handed_out)
    return scaled
