"""What every partition must do; a new partition is one more row of KINDS."""

import inspect
from abc import ABCMeta
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning import data
from pfl_lightning.data import (
    IID,
    ClassPartition,
    ClassShards,
    ConsecutiveClasses,
    Dirichlet,
    EqualDirichlet,
    EqualSizes,
    GroupedDirichlet,
    GroupedShards,
    Labels,
    LogNormalSizes,
    NaturalUsers,
    Partition,
    Population,
    SortedBlocks,
    SpeedGroups,
    UnequalClassShards,
    UniformSizes,
)
from pfl_lightning.errors import PflError


class Problem(NamedTuple):
    partition: Partition
    splits: list[Labels]
    classes: int
    population: Population

    @property
    def clients(self):
        return self.population.num_clients

    @property
    def class_sizes(self):
        return np.bincount(self.splits[0].classes, minlength=self.classes)

    def takers(self):
        """The clients of each class, where client u holds u, u + 1, ... modulo the number of classes."""
        each = self.partition.classes_per_client
        return {
            label: [client for client in range(self.clients) if (label - client) % self.classes < each]
            for label in range(self.classes)
        }

    def split(self, seed=0):
        return self.partition(self.splits, self.classes, self.population, np.random.default_rng(seed))


def sizes_fit(problem):
    return problem.partition.sizes.draw(problem.clients, np.random.default_rng(0)).sum() <= problem.class_sizes.sum()


def shards_fit(problem):
    wanted = problem.partition.classes_per_client
    return wanted <= problem.classes <= wanted * problem.clients


def unequal_shards_fit(problem):
    takers, sizes = problem.takers(), problem.class_sizes
    return problem.partition.classes_per_client <= problem.classes and all(
        0 < len(takers[label]) <= sizes[label] for label in range(problem.classes)
    )


def consecutive_classes_fit(problem):
    each = problem.partition.classes_per_client
    if each > problem.classes:
        return False
    sizes = problem.partition.sizes.draw(problem.clients, np.random.default_rng(0))
    takers = problem.takers()
    return all(
        sum(max(1, sizes[client] // each) for client in takers[label]) <= problem.class_sizes[label]
        for label in range(problem.classes)
    )


def groups_fit(problem):
    return problem.partition.groups <= min(problem.classes, problem.clients)


def users_fit(problem):
    train, *others = counts = [Counter(split.users.tolist()) for split in problem.splits]
    least = problem.partition.min_samples
    usable = [user for user in train if all(user in other for other in others)]
    return problem.clients <= sum(sum(count[user] for count in counts) >= least for user in usable)


def always(problem):
    return True


class Kind(NamedTuple):
    partitions: st.SearchStrategy[Partition]
    fits: Callable[[Problem], bool]
    complete: bool


sizes = st.one_of(
    st.builds(EqualSizes, st.integers(1, 9)),
    st.builds(lambda low, more: UniformSizes(low, low + more), st.integers(1, 6), st.integers(0, 6)),
    st.builds(LogNormalSizes, st.integers(0, 4), st.floats(-1, 2), st.floats(0, 1)),
)
alphas, few = st.sampled_from([1e-3, 0.1, 0.3, 10.0]), st.integers(1, 5)
KINDS = {
    "IID": Kind(st.just(IID()), always, complete=True),
    "IID of sizes": Kind(st.builds(IID, sizes), sizes_fit, complete=False),
    "ClassShards": Kind(st.builds(ClassShards, few), shards_fit, complete=True),
    "UnequalClassShards": Kind(st.builds(UnequalClassShards, few), unequal_shards_fit, complete=True),
    "ConsecutiveClasses": Kind(st.builds(ConsecutiveClasses, few, sizes), consecutive_classes_fit, complete=False),
    "GroupedShards": Kind(st.builds(GroupedShards, few), shards_fit, complete=False),
    "SortedBlocks": Kind(st.builds(SortedBlocks, st.floats(0, 1)), always, complete=True),
    "SpeedGroups": Kind(st.builds(SpeedGroups, few, st.floats(0, 1)), groups_fit, complete=True),
    "Dirichlet": Kind(st.builds(Dirichlet, alphas, few), always, complete=True),
    "GroupedDirichlet": Kind(st.builds(GroupedDirichlet, alphas, few), always, complete=True),
    "EqualDirichlet": Kind(st.builds(EqualDirichlet, alphas), always, complete=True),
    "NaturalUsers": Kind(st.builds(NaturalUsers, st.integers(1, 9)), users_fit, complete=False),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@st.composite
def problems(draw, kind):
    """Clients with speeds, and one or two splits of any class sizes and users."""
    classes, clients, users = draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.integers(1, 12))
    random = np.random.default_rng(draw(st.integers(0, 9)))
    splits = []
    for largest in draw(st.sampled_from([[30], [30, 12]])):
        class_sizes = draw(st.lists(st.integers(0, largest), min_size=classes, max_size=classes))
        labels = random.permutation(np.repeat(np.arange(classes), class_sizes))
        splits.append(Labels(labels, random.integers(0, users, len(labels))))
    return Problem(draw(kind.partitions), splits, classes, Population(clients, random.exponential(size=clients)))


def fits(problem, kind):
    """Whether there are enough samples for ``min_size`` each, and what the partition asks for besides."""
    train, *others = (len(split.classes) for split in problem.splits)
    least = problem.clients * problem.partition.min_size
    return least <= train and all(problem.clients <= other for other in others) and kind.fits(problem)


@every_kind
@given(data=st.data())
def test_every_client_has_samples_of_its_own_in_every_split_or_a_line_says_what_is_allowed(kind, data):
    problem = data.draw(problems(kind))
    if not fits(problem, kind):
        with pytest.raises(PflError, match=r"^data\.(num_clients|partition(\.\w+)*) must .+, got .+$"):
            problem.split()
        return
    for number, (split, parts) in enumerate(zip(problem.splits, problem.split(), strict=True)):
        least = problem.partition.min_size if number == 0 else 1
        assert len(parts) == problem.clients
        assert min(map(len, parts)) >= least
        given_out = np.concatenate(parts).tolist()
        assert len(set(given_out)) == len(given_out)
        assert set(given_out) <= set(range(len(split.classes)))
        assert len(given_out) == len(split.classes) or not kind.complete


ORDINARY = [
    IID(),
    IID(UniformSizes(8, 16)),
    ClassShards(2),
    UnequalClassShards(2),
    ConsecutiveClasses(2, EqualSizes(12)),
    GroupedShards(2),
    SortedBlocks(0.3),
    SpeedGroups(2),
    Dirichlet(0.3, 4),
    GroupedDirichlet(0.3, 3),
    EqualDirichlet(0.3),
    NaturalUsers(),
]
BY_CLASS = [partition for partition in ORDINARY if isinstance(partition, ClassPartition)]


@pytest.mark.parametrize("partition", ORDINARY, ids=lambda partition: type(partition).__name__)
def test_split_is_a_pure_function_of_the_generator(partition):
    # 120 training and 60 test samples of 4 classes and 15 users, for 6 clients
    splits = [Labels(np.arange(size) % 4, np.arange(size) % 15) for size in (120, 60)]
    problem = Problem(partition, splits, 4, Population(6, np.arange(6) / 1.0))
    first, again, other = ([part.tolist() for parts in problem.split(seed) for part in parts] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("partition", BY_CLASS, ids=lambda partition: type(partition).__name__)
def test_train_and_test_follow_one_matrix_of_shares(partition, share_out, class_counts):
    train, test = np.repeat(np.arange(4), 240), np.repeat(np.arange(4), 120)
    for seed in range(3):
        shares = partition.shares(np.full(4, 240), Population(6, np.arange(6) / 1.0), np.random.default_rng(seed))
        train_parts, test_parts = share_out(partition, [train, test], 6, seed)
        counts, test_counts = class_counts(train_parts, train, 4), class_counts(test_parts, test, 4)
        assert np.abs(counts - shares * 240).max() < 1 + 1e-6
        held = shares * (counts > 0)  # what a client has no training sample of goes to the others
        expected = held / held.sum(1, keepdims=True) * shares.sum(1, keepdims=True) * 120
        assert np.abs(test_counts - expected).max() < 1 + 1e-6
        assert not test_counts[counts == 0].any()


def test_every_partition_is_among_these():
    exported = [each for each in vars(data).values() if type(each) in (type, ABCMeta)]
    concrete = {each for each in exported if issubclass(each, Partition) and not inspect.isabstract(each)}
    assert {type(partition) for partition in ORDINARY} == concrete
    assert {name.split()[0] for name in KINDS} == {each.__name__ for each in concrete}


class Own(Partition):
    """What a user might write."""

    def __init__(self, *splits):
        self.splits = splits

    def split(self, splits, num_classes, population, rng):
        return [[np.array(part, dtype=np.int64) for part in parts] for parts in self.splits]


@pytest.mark.parametrize(
    ("splits", "line"),
    [
        ([[[0, 1], [2]]], "samples of 2 clients in each of 2 splits, got [2]"),
        ([[[0, 1], [2]], [[0]]], "samples of 2 clients in each of 2 splits, got [2, 1]"),
        ([[[0, 1], []], [[0], [1]]], "a training sample of each client or more, got a client without"),
        ([[[0, 1], [2]], [[0], [4]]], "samples from 0 to 3, got 4"),
        ([[[0, -1], [2]], [[0], [3]]], "samples from 0 to 5, got -1"),
        ([[[0, 1], [2, 1]], [[0], [3]]], "each sample once, to one client, got one twice"),
    ],
)
def test_what_an_own_partition_must_not_return_is_one_line(splits, line, share_out):
    with pytest.raises(PflError) as refused:
        share_out(Own(*splits), [np.arange(6) % 3, np.arange(4) % 3], 2)
    assert str(refused.value) == f"data.partition: Own must return {line}"


@pytest.mark.parametrize(
    ("partition", "sizes", "clients", "message"),
    [
        (IID(), [30, 30], 31, r"data\.num_clients must be at most 30, .* 30 training samples .* got 31$"),
        (IID(), [30, 12], 13, r"data\.num_clients must be at most 12, .* 12 test samples .* got 13$"),
        (Dirichlet(1.0, 4), [30, 30], 8, r"data\.num_clients must be at most 7, with at least 4 .* got 8$"),
    ],
)
def test_more_clients_than_there_are_samples_for_are_refused(partition, sizes, clients, message, share_out):
    with pytest.raises(PflError, match=message):
        share_out(partition, [np.arange(size) % 3 for size in sizes], clients)
