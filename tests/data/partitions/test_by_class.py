from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.data import IID, Labels, Population
from pfl_lightning.data.partitions.by_class import ClassPartition, cut, fill


class Fixed(ClassPartition):
    """Shares that are given."""

    def __init__(self, shares):
        self.given = np.array(shares, dtype=float)

    def shares(self, class_sizes, population, rng):
        return self.given


class Offset(NamedTuple):
    """A generator that does not shuffle and draws one number."""

    value: float

    def random(self):
        return self.value

    def permutation(self, values):
        return values


EXTREMES = [0.0, 1 - 2**-53]


def rng(seed=0):
    return np.random.default_rng(seed)


def equal_classes(classes, size):
    return np.repeat(np.arange(classes), size)


def test_nobody_is_tested_on_a_class_that_it_does_not_train_on(share_out, class_counts):
    # a share of 1e-4 of 20 training samples is none; of 2,000 test samples it would be some
    shares = [[1e-4, 0.5 - 1e-4, 0.5], [1.0, 0.0, 0.0]]
    train, test = equal_classes(2, 20), np.repeat([0, 1], [20000, 9])
    train_parts, test_parts = share_out(Fixed(shares), [train, test], 3)
    assert class_counts(train_parts, train, 2)[0].tolist() == [0, 10, 10]
    counts = class_counts(test_parts, test, 2)
    assert counts[1].tolist() == [9, 0, 0]
    assert counts[0, 0] == 0
    # (1/2 - 1e-4) : 1/2 of 20,000 samples is 9,999 : 10,001
    assert abs(counts[0, 1] - 9999) <= 1


def test_class_without_training_samples_is_tested_by_the_shares(share_out, class_counts):
    train, test = np.zeros(10, int), equal_classes(2, 8)
    parts = share_out(Fixed([[0.5, 0.5], [0.25, 0.75]]), [train, test], 2)
    assert class_counts(parts[1], test, 2)[1].tolist() == [2, 6]


def test_class_that_was_moved_to_a_client_without_a_share_is_tested_there(share_out, class_counts):
    # no training sample of class 0 exists, so client 0 is given the only one of class 1
    train, test = np.array([1, 2]), np.array([0, 1, 1, 2, 2])
    with pytest.warns(
        match=r"^data.partition: 1 of 2 clients had fewer than 1 training samples \(1 missing\); as many "
    ):
        train_parts, test_parts = share_out(Fixed([[1, 0], [0, 1], [0, 1]]), [train, test], 2)
    assert class_counts(train_parts, train, 3).tolist() == [[0, 0], [1, 0], [0, 1]]
    assert class_counts(test_parts, test, 3).tolist() == [[1, 0], [2, 0], [0, 2]]


@given(
    weights=st.lists(st.lists(st.integers(0, 5), min_size=8, max_size=8).filter(any), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_cut_is_within_one_sample_of_the_shares(weights, seed, class_counts):
    # the last column is nobody's
    shares = (np.array(weights) / np.sum(weights, axis=1, keepdims=True))[:, :-1]
    labels = rng(seed).integers(0, len(shares), 50)
    counts = class_counts(cut(labels, shares, rng(seed)), labels, len(shares))
    assert np.abs(counts - shares * np.bincount(labels, minlength=len(shares))[:, None]).max() < 1 + 1e-6
    assert not counts[shares == 0].any()


@pytest.mark.parametrize("offset", EXTREMES)
@given(sizes=st.lists(st.integers(0, 9), min_size=2, max_size=30).filter(any))
def test_cut_gives_whole_numbers_exactly(offset, sizes):
    *wanted, _ = sizes  # the last ones are nobody's
    parts = cut(np.zeros(sum(sizes), int), np.array([wanted]) / sum(sizes), Offset(offset))
    assert list(map(len, parts)) == wanted


@pytest.mark.parametrize("offset", EXTREMES)
def test_cut_of_a_million_neither_loses_nor_invents_a_sample(offset):
    # 999 times 1/999 is 1 - 1.6e-14; and one of a million is nobody's
    for row, given_out in ((np.full(999, 1 / 999), 10**6), (np.array([1 - 1e-6, 0.0]), 999_999)):
        assert sum(map(len, cut(np.zeros(10**6, int), row[None], Offset(offset)))) == given_out


def test_samples_of_a_class_are_shuffled(share_out):
    halves = [share_out(IID(), [np.zeros(10, int)], 2, seed)[0][0] for seed in range(400)]
    # binomial(400, 1/2): standard deviation 10
    np.testing.assert_allclose(np.bincount(np.concatenate(halves), minlength=10), 200, atol=40)


def test_left_over_samples_go_to_all_clients_alike():
    # one sample for three clients with shares 1/2, 1/4, 1/4
    shares = np.array([[0.5, 0.25, 0.25]])
    sizes = sum(np.array([len(part) for part in cut(np.zeros(1, int), shares, rng(seed))]) for seed in range(1000))
    # binomial(1000, share): standard deviation at most 15.8
    np.testing.assert_allclose(sizes, 1000 * shares[0], atol=65)


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
    assert fill(parts, labels, shares, 1) == [1]
    (sample,) = parts[0]
    assert labels[sample] == labels[moved]
    assert (sample >= 3) == (moved >= 3)
    assert sorted(np.concatenate(parts)) == list(range(7))


def test_missing_samples_come_first_from_those_that_nobody_has():
    # nobody has sample 3 of class 0, and 4 and 5 of class 1; client 0 wants class 1, and class 0 as little as class 2
    labels = np.array([1, 1, 2, 0, 1, 1])
    shares = np.array([[0.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    parts = [np.array([], int), np.array([0, 1, 2])]
    assert fill(parts, labels, shares, 3) == [3]
    assert sorted(parts[0]) == [3, 4, 5]
    assert parts[1].tolist() == [0, 1, 2]


def test_client_with_just_enough_samples_gives_none():
    # class 1, which client 0 would take, is with client 1 only
    parts = [np.array([], int), np.array([0]), np.array([1, 2])]
    fill(parts, np.array([1, 0, 0]), np.array([[0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]), 1)
    assert list(map(len, parts)) == [1, 1, 1]


class Poor(Fixed):
    """Fixed shares, and two training samples for everyone."""

    min_size = 2


@pytest.mark.parametrize(("new", "who"), [(False, "3 clients"), (True, "3 new clients")])
def test_one_warning_counts_clients_with_too_few_samples_and_what_they_lacked(new, who):
    # of 6 training samples client 0 gets 4, 1 and 2 get one each; of 3 test samples client 0 gets all
    shares = [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    splits = [Labels(np.repeat([0, 1], [4, 2])), Labels(np.zeros(3, int))]
    with pytest.warns() as warned:
        train, test = Poor(shares)(splits, 2, Population(3, np.arange(3) / 1.0, new), rng())
    assert [str(warning.message) for warning in warned] == [
        f"data.partition: 2 of {who} had fewer than 2 training samples (2 missing) and "
        f"2 of {who} had fewer than 1 test samples (2 missing); as many were moved to them"
    ]
    assert [list(map(len, parts)) for parts in (train, test)] == [[2, 2, 2], [1, 1, 1]]
