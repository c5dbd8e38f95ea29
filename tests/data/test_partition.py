import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pfl_lightning.data.partition import IID, ClassShards, Dirichlet, cut, fill
from pfl_lightning.errors import PflError

PARTITIONS = [IID(), ClassShards(2), Dirichlet(0.1, 1), Dirichlet(0.3, 4), Dirichlet(5.0, 1)]


def rng(seed=0):
    return np.random.default_rng(seed)


def equal_classes(classes, size):
    return np.repeat(np.arange(classes), size)


def class_counts(parts, labels, classes):
    """Samples of each class at each client, ``[classes, clients]``."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts], axis=1)


@st.composite
def problems(draw):
    """A partition, a number of clients and labels that are enough for them, in any classes."""
    classes, clients = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    shards = st.builds(ClassShards, st.integers(-(-classes // clients), classes))
    dirichlet = st.builds(Dirichlet, st.sampled_from([1e-3, 0.1, 0.3, 10.0]), st.integers(1, 4))
    partition = draw(st.one_of(st.just(IID()), shards, dirichlet))

    def labels(least):
        return np.array(draw(st.lists(st.integers(0, classes - 1), min_size=least, max_size=least + 40)))

    return partition, [labels(clients * partition.min_size), labels(clients)], classes, clients


LAST_CLASS_IS_EMPTY = Dirichlet(0.3, 1), [equal_classes(1, 4), equal_classes(2, 2)], 2, 1


@given(problems())
@example(LAST_CLASS_IS_EMPTY)
def test_every_sample_has_one_client(problem):
    partition, splits, classes, clients = problem
    for labels, parts in zip(splits, partition(splits, classes, clients, rng()), strict=True):
        assert len(parts) == clients
        assert sorted(np.concatenate(parts)) == list(range(len(labels)))


@given(problems())
@example(LAST_CLASS_IS_EMPTY)
def test_every_client_has_enough_samples(problem):
    partition, splits, classes, clients = problem
    train, test = partition(splits, classes, clients, rng())
    assert min(map(len, train)) >= partition.min_size
    assert min(map(len, test)) >= 1


@pytest.mark.parametrize("partition", PARTITIONS)
def test_split_is_a_pure_function_of_the_generator(partition):
    splits = [equal_classes(4, 30), equal_classes(4, 10)]
    first, again, other = (
        [part.tolist() for parts in partition(splits, 4, 6, rng(seed)) for part in parts] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("partition", [IID(), ClassShards(2), Dirichlet(5.0, 1)])
def test_train_and_test_follow_one_matrix_of_shares(partition, seed):
    splits = [equal_classes(4, 120), equal_classes(4, 60)]
    shares = partition.shares(np.full(4, 120), 6, rng(seed))
    np.testing.assert_allclose(shares.sum(1), 1)
    for labels, parts in zip(splits, partition(splits, 4, 6, rng(seed)), strict=True):
        expected = shares * np.bincount(labels)[:, None]
        assert np.abs(class_counts(parts, labels, 4) - expected).max() < 1 + 1e-6


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7).filter(any), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_cut_is_within_one_sample_of_the_shares(weights, seed):
    shares = np.array(weights) / np.sum(weights, axis=1, keepdims=True)
    labels = rng(seed).integers(0, len(shares), 50)
    counts = class_counts(cut(labels, shares, rng(seed)), labels, len(shares))
    assert np.abs(counts - shares * counts.sum(1, keepdims=True)).max() < 1 + 1e-6
    assert not counts[shares == 0].any()


def test_samples_of_a_class_are_shuffled():
    halves = [IID()([np.zeros(10, int)], 1, 2, rng(seed))[0][0] for seed in range(400)]
    # binomial(400, 1/2): standard deviation 10
    np.testing.assert_allclose(np.bincount(np.concatenate(halves), minlength=10), 200, atol=40)


def test_left_over_samples_go_to_all_clients_alike():
    # one sample for three clients with shares 1/2, 1/4, 1/4
    shares = np.array([[0.5, 0.25, 0.25]])
    sizes = sum(np.array([len(part) for part in cut(np.zeros(1, int), shares, rng(seed))]) for seed in range(1000))
    # binomial(1000, share): standard deviation at most 15.8
    np.testing.assert_allclose(sizes, 1000 * shares[0], atol=65)


def test_iid_clients_hold_equal_shares_of_every_class():
    labels = rng().permutation(equal_classes(5, 31))
    (parts,) = IID()([labels], 5, 4, rng())
    counts = class_counts(parts, labels, 5)
    assert counts.min() == 7
    assert counts.max() == 8


@pytest.mark.parametrize(
    ("classes", "shards", "train", "test", "clients_of_a_class", "sizes"),
    [
        (10, 5, 5000, 1000, 50, (500, 100)),  # CIFAR-10
        (100, 20, 500, 100, 20, (500, 100)),  # CIFAR-100
        (10, 5, 2400, 400, 50, (240, 40)),  # EMNIST balanced, first 10 classes
        (10, 5, 4800, 800, 50, (480, 80)),  # EMNIST letters, first 10 classes
        (10, 10, 500, 100, 100, (50, 10)),  # homogeneous
    ],
)
def test_class_shards_of_the_papers(classes, shards, train, test, clients_of_a_class, sizes):
    # SRPFL, section 6.1, with 100 clients: shards * 100 / classes clients hold a class, all of them equally much
    splits = [equal_classes(classes, train), equal_classes(classes, test)]
    for labels, parts, size in zip(splits, ClassShards(shards)(splits, classes, 100, rng()), sizes, strict=True):
        counts = class_counts(parts, labels, classes)
        assert set(counts.ravel()) <= {0, size // shards}
        assert set((counts > 0).sum(0)) == {shards}
        assert set((counts > 0).sum(1)) == {clients_of_a_class}
        assert set(map(len, parts)) == {size}


@given(st.integers(1, 7), st.integers(1, 9), st.data())
def test_class_shards_of_any_numbers_are_distinct_balanced_and_tested_alike(classes, clients, data):
    wanted = data.draw(st.integers(-(-classes // clients), classes))
    splits = [equal_classes(classes, 3 * clients), equal_classes(classes, clients)]
    train, test = (
        class_counts(parts, labels, classes) > 0
        for labels, parts in zip(splits, ClassShards(wanted)(splits, classes, clients, rng()), strict=True)
    )
    np.testing.assert_array_equal(train, test)
    assert set(train.sum(0)) == {wanted}
    assert np.ptp(train.sum(1)) <= 1


def test_dirichlet_gives_nothing_more_to_a_client_that_has_its_fair_number():
    sizes = np.array([50, 200, 100, 150])
    for seed in range(20):
        counts = sizes[:, None] * Dirichlet(0.5, 1).shares(sizes, 8, rng(seed))
        before = counts.cumsum(0) - counts
        assert before[counts > 0].max() < sizes.sum() / 8


def test_larger_alpha_mixes_the_classes_more():
    def entropy(alpha):
        shares = np.stack([Dirichlet(alpha, 1).shares(np.full(10, 500), 20, rng(seed)) for seed in range(5)])
        mix = shares / shares.sum(1, keepdims=True) + 1e-300
        return -(mix * np.log(mix)).sum(1).mean()

    assert entropy(0.1) < entropy(0.5) < entropy(100)


def test_impossible_draws_are_repaired():
    # DePRL, section 5.2: 5 classes, 64 clients, alpha 0.1, min_size 10 was not reached in thousands of draws
    labels = equal_classes(5, 400)
    shares = Dirichlet(0.1, 10).shares(np.full(5, 400), 64, rng())
    (parts,) = Dirichlet(0.1, 10)([labels], 5, 64, rng())
    assert (400 * shares).sum(0).min() < 9
    assert min(map(len, parts)) == 10
    assert sorted(np.concatenate(parts)) == list(range(2000))


@pytest.mark.parametrize(
    ("shares_of_the_poor", "moved"),
    [([0.0, 0.5], 2), ([0.5, 0.0], 4), ([0.0, 0.0], 5)],
    ids=["own class", "own class of the largest", "no class of its own"],
)
def test_missing_samples_come_from_the_largest_client_and_the_own_classes(shares_of_the_poor, moved):
    # client 1 holds classes 0, 0, 1 and client 2 holds classes 0, 0, 0, 0
    labels = np.array([0, 0, 1, 0, 0, 0, 0])
    shares = np.array([[shares_of_the_poor[0], 0.1, 0.4], [shares_of_the_poor[1], 0.5, 0.0]])
    parts = [np.array([], int), np.array([0, 1, 2]), np.array([3, 4, 5, 6])]
    fill(parts, labels, shares, 1)
    (sample,) = parts[0]
    assert labels[sample] == labels[moved]
    assert (sample >= 3) == (moved >= 3)
    assert sorted(np.concatenate(parts)) == list(range(7))


def test_client_with_just_enough_samples_gives_none():
    # class 1, which client 0 would take, is with client 1 only
    parts = [np.array([], int), np.array([0]), np.array([1, 2])]
    fill(parts, np.array([1, 0, 0]), np.array([[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]), 1)
    assert list(map(len, parts)) == [1, 1, 1]


@pytest.mark.parametrize(
    ("partition", "splits", "clients", "message"),
    [
        (IID(), [30, 30], 31, r"data\.num_clients: 31 .* 30 training samples .* 1 to 30"),
        (IID(), [30, 12], 13, r"data\.num_clients: 13 .* 12 test samples .* 1 to 12"),
        (Dirichlet(1.0, 4), [30, 30], 8, r"data\.num_clients: 8 .* at least 4 .* 1 to 7"),
        (ClassShards(4), [30, 30], 5, r"data\.partition\.classes_per_client: 4 .* 1 to 3"),
        (ClassShards(1), [30, 30], 2, r"data\.partition\.classes_per_client: 1 .* 2 clients.* 2 to 3"),
    ],
)
def test_impossible_split_is_refused(partition, splits, clients, message):
    with pytest.raises(PflError, match=message):
        partition([equal_classes(3, size // 3) for size in splits], 3, clients, rng())


@pytest.mark.parametrize(("partition", "clients"), [(IID(), 30), (Dirichlet(1.0, 4), 7), (ClassShards(3), 30)])
def test_most_clients_that_are_allowed_are_possible(partition, clients):
    train, _ = partition([equal_classes(3, 10)] * 2, 3, clients, rng())
    assert min(map(len, train)) >= partition.min_size
