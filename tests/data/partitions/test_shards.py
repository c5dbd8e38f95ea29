import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.data import (
    IID,
    ClassShards,
    ConsecutiveClasses,
    EqualSizes,
    GroupedShards,
    Labels,
    LogNormalSizes,
    Population,
    SortedBlocks,
    SpeedGroups,
    UnequalClassShards,
    UniformSizes,
)
from pfl_lightning.errors import PflError

MNIST = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]  # images of each digit, training and test together


def equal_classes(classes, size):
    return np.repeat(np.arange(classes), size)


@pytest.mark.parametrize("seed", range(3))
def test_iid_clients_have_their_sizes_but_for_rounding_in_every_class(seed, share_out, class_counts):
    drawn = UniformSizes(10, 90).draw(8, np.random.default_rng(seed))
    labels = np.repeat([0, 1, 2], [100, 300, 500])
    (parts,) = share_out(IID(UniformSizes(10, 90)), [labels], 8, seed)
    assert np.abs(class_counts(parts, labels, 3) - np.outer([1 / 9, 3 / 9, 5 / 9], drawn)).max() < 1 + 1e-6


@pytest.mark.parametrize(
    ("classes", "shards", "train", "test", "clients_of_a_class", "sizes"),
    [
        (10, 5, 5000, 1000, 50, (500, 100)),  # CIFAR-10
        (100, 20, 500, 100, 20, (500, 100)),  # CIFAR-100
    ],
)
def test_class_shards_of_the_papers(classes, shards, train, test, clients_of_a_class, sizes, share_out, class_counts):
    # SRPFL's 100 clients: shards * 100 / classes clients hold a class, all of them equally much
    splits = [equal_classes(classes, train), equal_classes(classes, test)]
    for labels, parts, size in zip(splits, share_out(ClassShards(shards), splits, 100), sizes, strict=True):
        counts = class_counts(parts, labels, classes)
        assert set(counts.ravel()) <= {0, size // shards}
        assert set((counts > 0).sum(0)) == {shards}
        assert set((counts > 0).sum(1)) == {clients_of_a_class}
        assert set(map(len, parts)) == {size}


@given(classes=st.integers(1, 7), clients=st.integers(1, 9), data=st.data())
def test_class_shards_of_any_numbers_are_distinct_balanced_and_tested_alike(
    classes, clients, data, share_out, class_counts
):
    wanted = data.draw(st.integers(-(-classes // clients), classes))
    splits = [equal_classes(classes, 3 * clients), equal_classes(classes, clients)]
    train, test = (
        class_counts(parts, labels, classes) > 0
        for labels, parts in zip(splits, share_out(ClassShards(wanted), splits, clients), strict=True)
    )
    np.testing.assert_array_equal(train, test)
    assert set(train.sum(0)) == {wanted}
    assert np.ptp(train.sum(1)) <= 1


def test_clients_choose_class_shards_in_random_order(share_out):
    # two classes for four clients: in the order of their ids, the first two would always take different ones
    labels = equal_classes(2, 4)
    firsts = [share_out(ClassShards(1), [labels], 4, seed)[0][:2] for seed in range(300)]
    alike = sum(labels[one[0]] == labels[other[0]] for one, other in firsts)
    # probability 1/3: standard deviation 8
    assert 70 < alike < 130


@pytest.mark.parametrize("seed", range(2))
def test_unequal_shards_are_those_of_the_two_label_generator(seed, share_out, class_counts):
    # each of the 4 clients of a digit but the last takes from [left // 5, left // 2)
    labels = np.repeat(np.arange(10), MNIST)
    (parts,) = share_out(UnequalClassShards(2), [labels], 20, seed)
    counts = class_counts(parts, labels, 10)
    for client in range(20):
        assert set(np.flatnonzero(counts[:, client])) == {client % 10, (client + 1) % 10}
    for label, left in enumerate(MNIST):
        slots = counts[label][counts[label] > 0].tolist()
        assert len(slots) == 4
        assert sum(slots) == left
        for taken in slots[:-1]:
            assert left // 5 <= taken < left // 2
            left -= taken
    assert len(set(map(len, parts))) == 20


def test_unequal_shards_take_all_numbers_of_their_intervals(share_out):
    # three clients of one class: each but the last takes from [left // 4, left // 2)
    drawn = (share_out(UnequalClassShards(1), [np.zeros(24, int)], 3, seed)[0] for seed in range(1000))
    expected = {(a, b) for a in range(6, 12) for b in range((24 - a) // 4, (24 - a) // 2)}
    assert {(len(first), len(second)) for first, second, _ in drawn} == expected


@given(takers=st.integers(1, 9), more=st.integers(0, 9), seed=st.integers(0, 99))
def test_nobody_needs_to_be_given_a_sample_of_an_unequal_shard(takers, more, seed):
    size = takers + more
    population = Population(takers, np.ones(takers))
    counts = UnequalClassShards(1).shares(np.array([size]), population, np.random.default_rng(seed)) * size
    assert counts.min() > 1 - 1e-9
    np.testing.assert_allclose(counts.sum(), size)


@pytest.mark.parametrize("seed", range(2))
def test_grouped_shards_are_those_of_pfllib(seed, share_out, class_counts):
    # 20 clients with two of ten classes: four clients each hold 0 and 1, 2 and 3, ...; all but the last of a class take
    # from [size // 40, size // 4)
    labels = np.repeat(np.arange(10), MNIST)
    (parts,) = share_out(GroupedShards(2), [labels], 20, seed)
    counts = class_counts(parts, labels, 10)
    for client in range(20):
        assert set(np.flatnonzero(counts[:, client])) == {client // 4 * 2, client // 4 * 2 + 1}
    assert counts.sum(1).tolist() == MNIST
    for label, size in enumerate(MNIST):
        *taken, rest = counts[label][counts[label] > 0]
        assert all(size // 40 <= each < size // 4 for each in taken)
        assert rest > size / 4
    assert len(set(map(len, parts))) > 10


def test_grouped_shards_that_do_not_come_out_even_leave_late_classes_to_fewer_clients(share_out, class_counts):
    # ceil(3 * 2 / 4) = 2 clients a class: the third client is alone with the third class, and has the fourth, too
    (parts,) = share_out(GroupedShards(2), [equal_classes(4, 40)], 3)
    holds = class_counts(parts, equal_classes(4, 40), 4) > 0
    assert holds.astype(int).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_consecutive_classes_are_those_of_the_papers_femnist(share_out, class_counts):
    # SRPFL's FEMNIST, 4,000 images of each letter; a class has 30 clients with 50 each, so 2,500 stay unused
    labels = equal_classes(10, 4000)
    (parts,) = share_out(ConsecutiveClasses(3, EqualSizes(150)), [labels], 100)
    expected = np.zeros((10, 100), int)
    for client in range(100):
        expected[[client % 10, (client + 1) % 10, (client + 2) % 10], client] = 50
    np.testing.assert_array_equal(class_counts(parts, labels, 10), expected)
    # Fig. 8, imbalanced: floor((100 + u) / 3) of each class, u from 0 to 50
    sizes = UniformSizes(100, 150)
    drawn = sizes.draw(100, np.random.default_rng(7))
    (parts,) = share_out(ConsecutiveClasses(3, sizes), [labels], 100, seed=7)
    np.testing.assert_array_equal(class_counts(parts, labels, 10), expected // 50 * (drawn // 3))


def test_consecutive_classes_may_use_a_class_up(share_out, class_counts):
    labels = equal_classes(3, 4)
    (parts,) = share_out(ConsecutiveClasses(2, EqualSizes(4)), [labels], 3)
    assert class_counts(parts, labels, 3).tolist() == [[2, 0, 2], [2, 2, 0], [0, 2, 2]]


def test_fewest_test_samples_are_still_one_for_each_client(share_out):
    # by the shares, 16 / 40 of the 40 test samples would be given out
    splits = [equal_classes(4, 400), equal_classes(4, 10)]
    with pytest.warns(match="of 40 clients had fewer than 1 test samples"):
        train, test = share_out(ConsecutiveClasses(2, EqualSizes(16)), splits, 40)
    assert set(map(len, train)) == {16}
    assert set(map(len, test)) == {1}


def test_speed_groups_are_those_of_the_papers(class_counts):
    # SRPFL, Fig. 8, column 4: the fastest 30 clients hold classes 0 to 2, the next 30 3 to 5, the slowest 40 the others
    times = np.random.default_rng(0).exponential(size=100)
    splits = [Labels(equal_classes(10, 300)), Labels(equal_classes(10, 60))]
    fastest = np.argsort(times)
    groups = [(fastest[:30], range(3)), (fastest[30:60], range(3, 6)), (fastest[60:], range(6, 10))]
    results = SpeedGroups(3)(splits, 10, Population(100, times), np.random.default_rng(0))
    for split, parts in zip(splits, results, strict=True):
        counts = class_counts(parts, split.classes, 10)
        assert counts.sum() == len(split.classes)
        for members, classes in groups:
            own = counts[np.ix_(classes, members)]
            assert own.sum() == counts[classes].sum()
            assert np.ptp(own) <= 1


def rank_sums(shuffled, seeds):
    """Ranks by speed of 100 clients, summed over those of each of three groups, ``[seeds, groups]``."""
    times = np.random.default_rng(0).exponential(size=100)
    ranks = times.argsort().argsort()
    rows = []
    for seed in range(seeds):
        shares = SpeedGroups(3, shuffled).shares(np.full(10, 300), Population(100, times), np.random.default_rng(seed))
        rows.append([ranks[shares[label] > 0].sum() for label in (0, 3, 6)])
    return np.array(rows)


def test_a_random_order_of_the_fastest_weakens_the_coupling_of_speed_and_class():
    # sums of the ranks 0 to 29, 30 to 59, 60 to 99, whatever the seed
    assert np.unique(rank_sums(0.0, 3), axis=0).tolist() == [[435, 1335, 3180]]
    # the slowest 20 stay in the last group: 80 + ... + 99 = 1790; the others have any of the ranks 0 to 79, of mean
    # 39.5. Such a sum of 30 has a standard deviation of 101, its mean over 400 seeds one of 5
    np.testing.assert_allclose(rank_sums(0.8, 400).mean(0), [1185, 1185, 790 + 1790], atol=25)
    # any of the ranks 0 to 99, of mean 49.5: standard deviations of at most 142 and 7
    np.testing.assert_allclose(rank_sums(1.0, 400).mean(0), [1485, 1485, 1980], atol=35)


@given(classes=st.integers(1, 15), clients=st.integers(1, 15), data=st.data())
def test_slower_clients_hold_higher_classes(classes, clients, data, share_out, class_counts):
    groups = data.draw(st.integers(1, min(classes, clients)))
    labels = equal_classes(classes, clients)
    counts = class_counts(share_out(SpeedGroups(groups), [labels], clients)[0], labels, classes)
    held = [tuple(np.flatnonzero(column)) for column in counts.T]
    assert held == sorted(held)
    assert len(set(held)) == groups
    assert sum(dict.fromkeys(held), ()) == tuple(range(classes))


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [
        (0.0, [[20, 10, 0], [0, 10, 0], [0, 0, 20]]),  # 60 samples in blocks of 20
        (0.5, [[15, 10, 5], [5 / 3, 20 / 3, 5 / 3], [10 / 3, 10 / 3, 40 / 3]]),
        (1.0, [[10] * 3, [10 / 3] * 3, [20 / 3] * 3]),
    ],
)
def test_blocks_of_sorted_samples_lie_beside_an_equal_share_of_all(similarity, expected, share_out, class_counts):
    labels = np.repeat([0, 1, 2], [30, 10, 20])
    (parts,) = share_out(SortedBlocks(similarity), [labels], 3)
    assert np.abs(class_counts(parts, labels, 3) - np.array(expected)).max() < 1


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (IID(EqualSizes(7)), 5, r"data\.partition\.sizes must .* the 30 .* got 35 for 5 clients$"),
        (ClassShards(4), 5, r"data\.partition\.classes_per_client must be 1 to 3, .* got 4$"),
        (ClassShards(1), 2, r"classes_per_client must be 2 to 3, .* each needs a client, got 1$"),
        (UnequalClassShards(1), 2, r"data\.num_clients must .* got 2: class 2 has 10 samples for 0 clients$"),
        (UnequalClassShards(3), 11, r"data\.num_clients must .* got 11: class 0 has 10 samples for 11 clients$"),
        # class 1 has the clients 0, 1, 3 and 4 with 3 samples each
        (ConsecutiveClasses(2, EqualSizes(6)), 5, r"data\.partition\.sizes must .* 10 samples of class 1, got 12$"),
        (SpeedGroups(3), 2, r"data\.partition\.groups must be 1 to 2, got 3$"),
    ],
)
def test_impossible_split_is_refused(partition, clients, message, share_out):
    with pytest.raises(PflError, match=message):
        share_out(partition, [equal_classes(3, 10)] * 2, clients)


def draw(sizes, clients=20_000, seed=0):
    return sizes.draw(clients, np.random.default_rng(seed))


def test_equal_sizes_are_those_of_the_papers():
    # SRPFL's FEMNIST: 150 samples a client
    assert draw(EqualSizes(), 4).tolist() == [150] * 4


def test_uniform_sizes_reach_both_ends_and_nothing_beyond():
    # SRPFL, Fig. 8: 100 + u, u from 0 to 50
    drawn = draw(UniformSizes())
    assert set(drawn.tolist()) == set(range(100, 151))
    # standard deviation of the mean: sqrt((51**2 - 1) / 12 / 20_000) = 0.1
    np.testing.assert_allclose(drawn.mean(), 125, atol=0.4)
    assert set(draw(UniformSizes(7, 7), 9).tolist()) == {7}


def test_uniform_sizes_in_the_wrong_order_are_refused():
    with pytest.raises(PflError, match=r"^data\.partition\.sizes\.low must be 1 to 2 \(sizes\.high\), got 3$"):
        UniformSizes(3, 2)


def test_log_normal_sizes_have_the_quantiles_of_the_law():
    # FedRep: 100 + LogNormal(4, 1); rounding down takes half a sample of some 50 on average
    drawn = draw(LogNormalSizes()) - 100 + 0.5
    # the standard normal's quantiles; those of 20,000 draws have a standard deviation of at most 0.013
    np.testing.assert_allclose(np.quantile(np.log(drawn), [0.1587, 0.5, 0.8413]), [3, 4, 5], atol=0.05)


def test_log_normal_sizes_are_rounded_down_to_a_sample_at_least():
    # exp(1) = 2.7
    assert set(draw(LogNormalSizes(3, 1.0, 0.0), 5).tolist()) == {5}
    assert draw(LogNormalSizes(0, -3.0, 1.0)).min() == 1


def test_log_normal_sizes_beyond_all_numbers_are_more_than_there_are(share_out):
    with pytest.raises(PflError, match=r"^data\.partition\.sizes must .* the 30 .* for 3 clients$"):
        share_out(IID(LogNormalSizes(mean=1e4)), [np.arange(30) % 2], 3)
