from abc import ABC, abstractmethod

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pfl_lightning.bounds import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveInt, Real
from pfl_lightning.data.partitions.by_class import ClassPartition, Shares
from pfl_lightning.data.partitions.partition import Indices, Population
from pfl_lightning.errors import PflError


class Sizes(ABC):
    """Number of samples that each client gets."""

    @abstractmethod
    def draw(self, num_clients: int, rng: Generator) -> Indices:
        """Samples of each client, ``[num_clients]``, at least 1 each."""


class EqualSizes(Sizes):
    """The same number for all clients; SRPFL's FEMNIST (arXiv:2206.02078) has 150.

    Args:
        samples: Samples per client.
    """

    def __init__(self, samples: PositiveInt = 150) -> None:
        self.samples = samples

    def draw(self, num_clients: int, rng: Generator) -> Indices:
        """The same number for all clients."""
        return np.full(num_clients, self.samples)


class UniformSizes(Sizes):
    """Uniform random integers; SRPFL's imbalanced FEMNIST (arXiv:2206.02078, Fig. 8) has 100 + U[0, 50].

    Args:
        low: Smallest number of samples.
        high: Largest number of samples.

    Raises:
        PflError: If the smallest is larger than the largest.
    """

    def __init__(self, low: PositiveInt = 100, high: PositiveInt = 150) -> None:
        if low > high:
            raise PflError(f"data.partition.sizes.low must be 1 to {high} (sizes.high), got {low}")
        self.low = low
        self.high = high

    def draw(self, num_clients: int, rng: Generator) -> Indices:
        """Uniform draws, both ends included."""
        return rng.integers(self.low, self.high, num_clients, endpoint=True)


class LogNormalSizes(Sizes):
    """``least`` + LogNormal(mean, sigma): many small clients and a few large ones.

    The defaults are those of FedRep's FEMNIST (Collins et al. 2021, arXiv:2102.07078, authors' code).

    Args:
        least: Minimum number of samples per client.
        mean: Mean of the logarithm of the additional samples.
        sigma: Standard deviation of that logarithm.
    """

    def __init__(self, least: NonNegativeInt = 100, mean: Real = 4.0, sigma: NonNegativeFloat = 1.0) -> None:
        self.least = least
        self.mean = mean
        self.sigma = sigma

    def draw(self, num_clients: int, rng: Generator) -> Indices:
        """Log-normal draws, rounded down."""
        draws = np.minimum(rng.lognormal(self.mean, self.sigma, num_clients), 1e12)  # avoids integer overflow
        sizes: Indices = np.maximum(1, self.least + draws.astype(np.int64))
        return sizes


class IID(ClassPartition):
    """Every client gets the same share of every class; clients can only differ in size.

    Args:
        sizes: Number of samples of each client; rounding changes it by less than one per class. Default: all samples,
            in equal parts.
    """

    def __init__(self, sizes: Sizes | None = None) -> None:
        self.sizes = sizes

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Equal shares, or those of the sizes.

        Raises:
            PflError: If the clients need more samples than there are.
        """
        if self.sizes is None:
            return np.full((len(class_sizes), population.num_clients), 1 / population.num_clients)
        drawn = self.sizes.draw(population.num_clients, rng)
        total = class_sizes.sum()
        if drawn.sum() > total:
            raise PflError(
                f"data.partition.sizes must sum up to at most the {total:,} samples of the data set, got "
                f"{drawn.sum():,} for {population.num_clients} clients"
            )
        return np.tile(drawn / total, (len(class_sizes), 1))


class ClassShards(ClassPartition):
    """Every client gets shards of a few classes.

    Each class is cut into equal shards, one for each client that holds it. Clients, in random order, choose the classes
    that the fewest clients have chosen so far, so the numbers of clients per class differ by at most one.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning" (SRPFL), TMLR 2023, arXiv:2206.02078.

    Differs: in the authors' code a client can have two shards of one class, and then has fewer classes.

    Args:
        classes_per_client: Number of different classes per client.
    """

    def __init__(self, classes_per_client: PositiveInt = 3) -> None:
        self.classes_per_client = classes_per_client

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Equal shares of each client's own classes.

        Raises:
            PflError: If clients need more classes than there are, or there are too few shards for all classes.
        """
        classes = len(class_sizes)
        clients = population.num_clients
        _check_classes(self.classes_per_client, classes, least=-(-classes // clients))
        holds = np.zeros((classes, clients))
        holders = np.zeros(classes)
        for client in rng.permutation(clients):
            chosen = np.lexsort((rng.random(classes), holders))[: self.classes_per_client]
            holds[chosen, client] = 1
            holders[chosen] += 1
        shares: Shares = holds / holders[:, None]
        return shares


class UnequalClassShards(ClassPartition):
    """Client u holds the classes u, u + 1, ... (modulo their number), in very unequal shares.

    The m clients of a class take samples in turn: each but the last takes a uniform random integer from
    [left // (m + 1), left // 2), at least 1, where ``left`` samples remain; the last client takes the rest.

    Paper: Liu et al., "Sparse Personalized Federated Learning" (FedMac), IEEE TNNLS 2023, arXiv:2107.05330, with the
    generator of pFedMe's code (arXiv:2006.08848).

    Differs: that generator counts the samples of the first two classes only, and drops what does not fit.

    Args:
        classes_per_client: Number of different classes per client.
    """

    def __init__(self, classes_per_client: PositiveInt = 2) -> None:
        self.classes_per_client = classes_per_client

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Unequal shares of consecutive classes.

        Raises:
            PflError: If clients need more classes than there are, or a class has too few clients or samples.
        """
        holds = consecutive_classes(self.classes_per_client, len(class_sizes), population.num_clients)
        shares = np.zeros(holds.shape)
        for label, size in enumerate(class_sizes):
            takers = np.flatnonzero(holds[label])
            if not 0 < len(takers) <= size:
                raise PflError(
                    f"{population.option} must give each class a client, and each client a sample, got "
                    f"{population.num_clients}: class {label} has {size} samples for {len(takers)} clients"
                )
            shares[label, takers] = _take_in_turn(int(size), len(takers), rng) / size
        return shares


class GroupedShards(ClassPartition):
    """Groups of clients that hold the same classes, in unequal shares; PFLlib's pathological split.

    In their order, classes go to the first ceil(clients * classes_per_client / classes) clients that lack some. Each of
    these m clients but the last takes a uniform random integer from [size // (10 m), size // m) of the class's samples;
    the last client takes the rest.

    Paper: Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning Library and
    Benchmark", JMLR 26, 2025, arXiv:2312.04992, and its authors' code.

    Args:
        classes_per_client: Number of different classes per client. If the groups do not come out even, the last clients
            get fewer, or the last classes stay unused.
    """

    def __init__(self, classes_per_client: PositiveInt = 2) -> None:
        self.classes_per_client = classes_per_client

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Unequal shares within each group.

        Raises:
            PflError: If clients need more classes than there are, or there are too few clients for all classes.
        """
        classes = len(class_sizes)
        clients = population.num_clients
        _check_classes(self.classes_per_client, classes, least=-(-classes // clients))
        lacking = np.full(clients, self.classes_per_client)
        shares = np.zeros((classes, clients))
        for label, size in enumerate(class_sizes):
            takers = np.flatnonzero(lacking)[: -(-clients * self.classes_per_client // classes)]
            lacking[takers] -= 1
            if len(takers):
                low = size // (10 * len(takers))
                counts = rng.integers(low, max(size // len(takers), low + 1), len(takers) - 1)
                shares[label, takers] = np.array([*counts, size - counts.sum()]) / max(size, 1)
        return shares


class ConsecutiveClasses(ClassPartition):
    """Client u holds the classes u, u + 1, ... (modulo their number), with the same number of samples of each.

    Remaining samples are not used.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning" (SRPFL), TMLR 2023, arXiv:2206.02078,
    for FEMNIST.

    Differs: the authors' code gives all clients of a class the same images; here no two clients share one.

    Args:
        classes_per_client: Number of different classes per client.
        sizes: Number of samples of each client, including test samples if ``data.test_fraction`` takes them from these.
            Default: ``EqualSizes``.
    """

    def __init__(self, classes_per_client: PositiveInt = 3, sizes: Sizes | None = None) -> None:
        self.classes_per_client = classes_per_client
        self.sizes = sizes

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """The same number of samples of each of the client's classes.

        Raises:
            PflError: If clients need more classes than there are, or a class has too few samples.
        """
        holds = consecutive_classes(self.classes_per_client, len(class_sizes), population.num_clients)
        drawn = (self.sizes or EqualSizes()).draw(population.num_clients, rng)
        wanted = holds * np.maximum(1, drawn // self.classes_per_client)
        if (missing := wanted.sum(1) - class_sizes).max() > 0:
            label = int(missing.argmax())
            raise PflError(
                f"data.partition.sizes must ask for at most the {class_sizes[label]:,} samples of class {label}, got "
                f"{wanted[label].sum():,}"
            )
        shares: Shares = wanted / np.maximum(class_sizes, 1)[:, None]
        return shares


class SortedBlocks(ClassPartition):
    """A share of all samples is dealt like cards; the rest is sorted by class and cut into a block for each client.

    Paper: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
    arXiv:1910.06378, whose "s % similarity" this is.

    Args:
        similarity: The share that is dealt: 1 is IID, and with 0 no two clients share more than one class.
    """

    def __init__(self, similarity: ClosedUnitInterval = 0.1) -> None:
        self.similarity = similarity

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Equal shares of every class, and what of it lies in a client's block."""
        clients = population.num_clients
        blocks = np.linspace(0, class_sizes.sum(), clients + 1)
        ends = class_sizes.cumsum()[:, None]
        starts = ends - class_sizes[:, None]
        inside = (np.minimum(ends, blocks[1:]) - np.maximum(starts, blocks[:-1])).clip(0)
        shares: Shares = self.similarity / clients + (1 - self.similarity) * inside / np.maximum(ends - starts, 1)
        shares[class_sizes == 0] = 1 / clients
        return shares


class SpeedGroups(ClassPartition):
    """Faster clients get lower classes.

    Classes are cut into groups in order, and clients, sorted by computation time, into groups of proportional sizes.
    The clients of a group share its classes equally. The coupling is full, or weaker if the order of the fastest
    clients is random.

    Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning" (SRPFL), TMLR 2023, arXiv:2206.02078,
    Fig. 8, column 4.

    Args:
        groups: Number of groups; with 3 of them and 10 classes, the fastest 30 % of the clients hold the classes 0, 1
            and 2, the next 30 % the classes 3, 4 and 5, the slowest 40 % the others.
        shuffled: Share of the clients, the fastest, whose order is random; 0.8 is the authors' code, and with 1 speeds
            and classes are independent.
    """

    def __init__(self, groups: PositiveInt = 3, shuffled: ClosedUnitInterval = 0.0) -> None:
        self.groups = groups
        self.shuffled = shuffled

    def shares(self, class_sizes: Indices, population: Population, rng: Generator) -> Shares:
        """Equal shares within each group.

        Raises:
            PflError: If there are more groups than classes or clients.
        """
        classes = len(class_sizes)
        clients = population.num_clients
        if self.groups > min(classes, clients):
            raise PflError(f"data.partition.groups must be 1 to {min(classes, clients)}, got {self.groups}")
        groups = np.arange(self.groups + 1)
        class_ends = groups * classes // self.groups
        client_ends = np.rint(class_ends * clients / classes).astype(np.int64)
        client_ends = np.maximum.accumulate(client_ends - groups) + groups  # or rounding would leave a group empty
        order = np.argsort(population.times, kind="stable")
        fast = round(self.shuffled * clients)
        order[:fast] = rng.permutation(order[:fast])
        shares = np.zeros((classes, clients))
        for group in range(self.groups):
            members = order[client_ends[group] : client_ends[group + 1]]
            shares[class_ends[group] : class_ends[group + 1], members] = 1 / len(members)
        return shares


def consecutive_classes(classes_per_client: int, num_classes: int, num_clients: int) -> NDArray[np.bool_]:
    """Whether client u holds a class, ``[classes, clients]``: it holds u, u + 1, ... modulo the number of classes.

    Raises:
        PflError: If clients need more classes than there are.

    Examples:
        >>> consecutive_classes(2, num_classes=3, num_clients=3).astype(int)
        array([[1, 0, 1],
               [1, 1, 0],
               [0, 1, 1]])
    """
    _check_classes(classes_per_client, num_classes)
    places = (np.arange(num_classes)[:, None] - np.arange(num_clients)) % num_classes
    return places < classes_per_client


def _check_classes(wanted: int, classes: int, least: int = 1) -> None:
    if not least <= wanted <= classes:
        raise PflError(
            f"data.partition.classes_per_client must be {least} to {classes}, since there are {classes} classes, and "
            f"each needs a client, got {wanted}"
        )


def _take_in_turn(samples: int, takers: int, rng: Generator) -> Indices:
    """How many samples each taker takes, at least one."""
    counts = []
    for behind in range(takers - 1, 0, -1):
        low = samples // (takers + 1)
        count = int(rng.integers(low, max(samples // 2, low + 1)))
        counts.append(min(max(count, 1), samples - behind))
        samples -= counts[-1]
    return np.array([*counts, samples])
