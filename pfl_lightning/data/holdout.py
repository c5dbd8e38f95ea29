"""Holding out clients, and samples of clients, for validation and testing."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from pfl_lightning.data.partitions.partition import Indices, Parts
from pfl_lightning.errors import PflError

# the last three: what clients train on once attackers attack, their tests, and what a backdoor wants of others' tests
Split = Literal["train", "val", "test", "choice", "poisoned", "attackers", "backdoor"]
USUAL_TEST_FRACTION = 0.25


class Roles(NamedTuple):
    """Ids of the clients by what their samples are for.

    Attributes:
        training: The clients that train; some of their samples may be held out.
        validation: The clients whose samples are all for validation.
        test: The clients whose samples are all for testing.
    """

    training: range
    validation: range
    test: range


@dataclass(frozen=True)
class HeldOut:
    """The shares of the clients and of their samples that are held out from training.

    Attributes:
        val_fraction: See ``FederatedDataModule``, also for the other attributes.
        test_fraction: None if it is not given; it is then a quarter if the data set has no test split of its own.
        val_clients: Share of the clients that are not for testing.
        test_clients: Share of all clients.
        choice_fraction: Share of each test client's samples.
    """

    val_fraction: float
    test_fraction: float | None
    val_clients: float
    test_clients: float
    choice_fraction: float

    def check(self, num_clients: int) -> None:
        """Check that the options are possible together.

        Args:
            num_clients: Number of clients.

        Raises:
            PflError: If they are not, or no client is left to train.
        """
        if self.test_clients and self.test_fraction is not None:
            raise PflError("data.test_fraction and data.test_clients exclude each other; set one of them")
        if self.choice_fraction and not self.test_clients:
            raise PflError(f"data.choice_fraction must be 0 without data.test_clients, got {self.choice_fraction}")
        roles = self.roles(num_clients)
        if not roles.training:
            option = f"val_clients: {self.val_clients}" if roles.validation else f"test_clients: {self.test_clients}"
            raise PflError(f"data.{option} leaves no client to train; set a smaller one")

    def roles(self, num_clients: int) -> Roles:
        """Who trains, validates and tests, in this order of the ids.

        Examples:
            >>> HeldOut(0.1, None, val_clients=0.5, test_clients=0.5, choice_fraction=0.0).roles(40)
            Roles(training=range(0, 10), validation=range(10, 20), test=range(20, 40))
        """
        not_test = _rest(num_clients, self.test_clients)
        training = _rest(not_test, self.val_clients)
        return Roles(range(training), range(training, not_test), range(not_test, num_clients))

    @property
    def clients_option(self) -> str:
        """The option by which some clients never train, such as ``test_clients: 0.5``."""
        return f"test_clients: {self.test_clients}" if self.test_clients else f"val_clients: {self.val_clients}"

    def split(self, samples: int, official: int | None, validation: int = 0) -> list[Indices]:
        """The samples to deal: all of them, or those for training and the data set's own other splits apart.

        Args:
            samples: Number of samples in all.
            official: Index where the data set's own test split begins; None if it has none.
            validation: Number of samples of its own validation split, which lie before that.

        Returns:
            Those for training; those for testing, if they are used; and those for validation, if they are.
        """
        every = np.arange(samples)
        if official is None or self.test_fraction is not None or self.test_clients:
            return [every]
        if not validation or not self.val_fraction or self.val_clients:
            return [every[:official], every[official:]]
        return [every[: official - validation], every[official:], every[official - validation : official]]

    def assign(self, splits: Sequence[Parts], rng: Generator, overlap: int = 0) -> dict[Split, Parts]:
        """Assign the samples of every client to splits.

        Args:
            splits: Sample indices of each client in each of the splits that ``split`` returns.
            rng: Source of randomness.
            overlap: See ``hold_out``.

        Returns:
            Sample indices of each client, by split; ``choice`` is missing unless ``choice_fraction`` is positive.
        """
        roles = self.roles(len(splits[0]))
        remaining, held_out = zip(*(hold_out_clients(parts, roles.validation) for parts in splits), strict=True)
        train = remaining[0]
        val = [np.concatenate(parts) for parts in zip(*held_out, strict=True)]
        if len(remaining) > 1:
            test = remaining[1]
        elif self.test_clients:
            train, test = hold_out_clients(train, roles.test)
        else:
            train, test = hold_out(train, self.test_fraction or USUAL_TEST_FRACTION, rng, overlap)
        if len(remaining) > 2:
            val = remaining[2]
        elif not self.val_clients:
            train, val = hold_out(train, self.val_fraction, rng, overlap)
        assigned: dict[Split, Parts] = {"train": train, "val": val, "test": test}
        if self.choice_fraction:
            assigned["test"], assigned["choice"] = hold_out(test, self.choice_fraction, rng, overlap)
        return assigned


def hold_out(parts: Sequence[np.ndarray], fraction: float, rng: Generator, overlap: int = 0) -> tuple[Parts, Parts]:
    """Hold out a share of every client's samples, at random unless neighbouring samples overlap.

    Args:
        parts: Sample indices of each client.
        fraction: The share; 0 for none.
        rng: Source of randomness.
        overlap: Number of successive samples that share content, such as windows of one text. If not 0, a client's last
            samples are held out, and up to this many samples before them are dropped.

    Returns:
        The samples that each client keeps (at least one), and those that are held out (at least one, if possible).
    """
    halves = [_hold_out(part, held_out_size(len(part), fraction), rng, overlap) for part in parts]
    return [remaining for remaining, _ in halves], [held_out for _, held_out in halves]


def _hold_out(part: Indices, size: int, rng: Generator, overlap: int) -> tuple[Indices, Indices]:
    if not overlap:
        shuffled = rng.permutation(part)
        return shuffled[size:], shuffled[:size]
    ordered = np.sort(part)
    start = len(part) - size
    end = max(1, start - overlap) if size else start
    return ordered[:end], ordered[start:]


def side_by_side(people: Indices, targets: Indices, stretches: Indices) -> tuple[Indices, int]:
    """An order in which the n windows of each person and activity are at 1/2n, 3/2n, ... of the way.

    So the last ones of a person, which are held out, have its activities in their shares.

    Args:
        people: Person of each window, ``[windows]``, in the order of time for each person.
        targets: Activity of each window.
        stretches: Stretch of each window; those of one stretch that follow one another share rows.

    Returns:
        The order, ``[windows]``, and how far apart in it two windows of a person that share rows are at most.
    """
    way = np.empty(len(people))
    groups = people * (1 + targets.max(initial=0)) + targets
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        way[members] = (np.arange(len(members)) + 0.5) / len(members)
    furthest = 0
    for person in np.unique(people):
        members = np.flatnonzero(people == person)
        places = np.argsort(np.argsort(way[members], kind="stable"))
        share_rows = np.diff(stretches[members]) == 0
        furthest = max(furthest, np.diff(places)[share_rows].max(initial=0))
    return np.argsort(way, kind="stable"), int(furthest)


def hold_out_clients(parts: Sequence[np.ndarray], clients: range) -> tuple[Parts, Parts]:
    """Hold out all samples of some clients, and none of the others.

    Args:
        parts: Sample indices of each client.
        clients: Ids of the clients whose samples are held out.

    Returns:
        The samples that each client keeps, and those that are held out.

    Examples:
        >>> remaining, held_out = hold_out_clients([np.array([4, 5]), np.array([6])], range(1, 2))
        >>> [part.tolist() for part in remaining], [part.tolist() for part in held_out]
        ([[4, 5], []], [[], [6]])
    """
    nothing = np.zeros(0, dtype=np.int64)
    remaining = [nothing if client in clients else part for client, part in enumerate(parts)]
    return remaining, [part if client in clients else nothing for client, part in enumerate(parts)]


def limit_samples(
    splits: Mapping[Split, Parts], samples: int | None, rng: Generator, fraction: float = 1.0
) -> dict[Split, Parts]:
    """Draw so many samples of each client in each split; all of a client that has no more.

    Args:
        splits: Sample indices of each client, by split.
        samples: How many to draw; None for all.
        rng: Source of randomness.
        fraction: Most of them, as a share of the client's samples in the split; at least one is drawn.
    """
    return {split: [_limit(part, samples, rng, fraction) for part in parts] for split, parts in splits.items()}


def _limit(part: Indices, samples: int | None, rng: Generator, fraction: float) -> Indices:
    most = max(1, round(fraction * len(part)))
    if samples is not None:
        most = min(samples, most)
    return rng.choice(part, most, replace=False) if len(part) > most else part


def held_out_size(samples: int, fraction: float) -> int:
    """Number of samples to hold out from a client: the share, at least 1, but always leaving 1.

    Examples:
        >>> [held_out_size(samples, 0.1) for samples in (1, 2, 20)]
        [0, 1, 2]
    """
    return max(0, min(max(1, round(samples * fraction)), samples - 1)) if fraction > 0 else 0


def check_test_samples(parts: Parts) -> None:
    """Warn of clients that have no test samples.

    Args:
        parts: Test samples of each client that should have some.

    Raises:
        PflError: If none has any.
    """
    without = sum(not len(part) for part in parts)
    if without == len(parts):
        raise PflError("data.test_fraction: no client has a test sample; give clients at least 2 samples")
    if without:
        warnings.warn(f"{without} of {len(parts)} clients have no test samples, and so no score", stacklevel=3)


def _rest(clients: int, share: float) -> int:
    return int(clients * (1 - share) + 1e-9)  # 10 * (1 - 0.9) is 0.99999...
