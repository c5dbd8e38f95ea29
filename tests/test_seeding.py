from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.seeding import numpy_generator, permutations, random_bits, random_words, samples, seed_of

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(state):
    """Vigna's splitmix64.c on Python's unbounded integers."""
    while True:
        state = (state + GOLDEN) & MASK
        word = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
        yield word ^ word >> 31


def test_reference_gives_the_published_vector():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert list(islice(splitmix64(1234567), 4)) == published


def test_seed_is_the_same_in_every_process_and_version():
    # printf "(1, 'pool', 0)" | b2sum -l 64  ->  9e7fa2bd613e4c85; read as little endian, the last bit dropped
    assert seed_of(1, "pool", 0) == 0x854C3E61BDA27F9E >> 1


def test_different_keys_have_different_seeds():
    keys = [(), (1,), ("1",), (1, 2), (12,), ("12",), (2, 1), ("a", 1), (1, "a"), ("a1",), ("a", "1"), (-1,)]
    keys += [(0, "pool", index) for index in range(1000)]
    assert len({seed_of(*key) for key in keys}) == len(keys)


@given(st.tuples(st.integers(), st.text(max_size=5), st.integers()))
def test_seed_fits_a_signed_64_bit_integer(key):
    assert 0 <= seed_of(*key) < 1 << 63


def test_numpy_generator_is_fresh_for_every_call():
    first, again, other = (numpy_generator(*key).random(5) for key in [(1, "a"), (1, "a"), (1, "b")])
    np.testing.assert_array_equal(first, again)
    assert not np.intersect1d(first, other).size


@pytest.mark.parametrize("client", [0, 1, 7, 123_456_789])
def test_words_and_bits_are_those_of_splitmix64(client):
    key = (3, "order", 5)
    stream = next(splitmix64(seed_of(*key) + (client - 1) * GOLDEN))
    expected = list(islice(splitmix64(stream), 6))
    words = random_words(key, torch.tensor([client]), 6)
    assert [word & MASK for word in words[0].tolist()] == expected
    assert random_bits(key, torch.tensor([client]), 6).tolist() == [[word & (MASK >> 1) for word in expected]]
    assert torch.equal(random_words(key, torch.tensor([client]), 4, first=2), words[:, 2:])


def test_bits_do_not_depend_on_the_other_clients_or_columns():
    ids = torch.tensor([4, 0, 9, 4])
    bits = random_bits((1, "x"), ids, 7)
    assert torch.equal(bits[2:3, :3], random_bits((1, "x"), torch.tensor([9]), 3))
    assert torch.equal(bits[0], bits[3])
    assert not torch.equal(bits, random_bits((2, "x"), ids, 7))


def test_every_bit_is_set_half_of_the_time():
    bits = random_bits((1, "x"), torch.arange(200), 200)
    shares = torch.stack([(bits >> place & 1).double().mean() for place in range(63)])
    assert bits.min() >= 0
    # standard deviation of a share of 40,000 fair coins: 0.0025
    assert (shares - 0.5).abs().max() < 0.011


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 99))
def test_own_positions_are_shuffled_and_the_others_follow(counts, spare, seed):
    columns = max(counts) + spare
    orders = permutations((seed, "x"), torch.arange(len(counts)), torch.tensor(counts), columns)
    for count, order in zip(counts, orders.tolist(), strict=True):
        assert sorted(order[:count]) == list(range(count))
        assert sorted(order[count:]) == list(range(count, columns))


def test_order_of_a_client_does_not_depend_on_the_padding_or_the_cohort():
    together = permutations((1, "x"), torch.tensor([5, 8, 2]), torch.tensor([4, 9, 6]), 9)
    alone = permutations((1, "x"), torch.tensor([2]), torch.tensor([6]), 6)
    assert together[2, :6].tolist() == alone[0].tolist()


def test_all_orders_are_equally_frequent():
    orders = permutations((1, "x"), torch.arange(6000), torch.full((6000,), 3), 3)
    frequencies = Counter(map(tuple, orders.tolist()))
    assert len(frequencies) == 6
    # chi-squared with 5 degrees of freedom: 20.5 is its 99.9th percentile
    assert sum((count - 1000) ** 2 / 1000 for count in frequencies.values()) < 20.5


@pytest.mark.parametrize("first", [1, 4, 9, 20])
def test_the_front_of_a_permutation_is_that_of_the_whole_one(first):
    ids, counts = torch.tensor([3, 0, 8]), torch.tensor([9, 5, 2])
    whole, front = (permutations(("k", 1), ids, counts, 9, wanted) for wanted in (None, first))
    for row, count in enumerate(counts.tolist()):
        shown = min(first, count)
        assert front[row, :shown].tolist() == whole[row, :shown].tolist()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 99))
def test_a_few_samples_are_different_positions_of_the_client(counts, size, seed):
    drawn = samples([(seed, "x")], torch.arange(len(counts)), torch.tensor(counts), size)[0]
    for count, positions in zip(counts, drawn.tolist(), strict=True):
        assert len(set(positions)) == size
        assert all(position < count for position in positions[:count])
        assert positions[count:] == list(range(count, size))


def test_clients_with_few_samples_get_the_same_order_by_both_rules():
    ids, counts = torch.tensor([3, 0, 8]), torch.tensor([9, 5, 2])
    assert torch.equal(samples([("k", 1)], ids, counts, 9)[0], permutations(("k", 1), ids, counts, 9))
    longer = permutations(("k", 1), ids, counts, 20)
    assert torch.equal(samples([("k", 1)], ids, counts, 12)[0], longer[:, :12])


def test_a_few_samples_do_not_depend_on_the_other_clients_and_draws():
    together = samples([(1, "x"), (2, "x")], torch.tensor([5, 8, 2]), torch.tensor([40, 900, 6]), 8)
    assert torch.equal(together[1, 1:2], samples([(2, "x")], torch.tensor([8]), torch.tensor([900]), 8)[0])
    assert not torch.equal(together[0, 1], together[1, 1])


def test_all_ordered_samples_are_equally_frequent():
    drawn = samples([(1, "x")], torch.arange(12_000), torch.full((12_000,), 4), 2)[0]
    frequencies = Counter(map(tuple, drawn.tolist()))
    assert len(frequencies) == 12
    # chi-squared with 11 degrees of freedom: 31.3 is its 99.9th percentile
    assert sum((count - 1000) ** 2 / 1000 for count in frequencies.values()) < 31.3
