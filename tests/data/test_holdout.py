import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.data.holdout import held_out_size, hold_out, hold_out_clients

# clients with 0 to 9 samples each, whose numbers are their places in the data
parts_of_clients = st.lists(st.integers(0, 9), min_size=1, max_size=6).map(
    lambda sizes: np.split(np.arange(100, 100 + sum(sizes)), np.cumsum(sizes)[:-1])
)


def lists(parts):
    return [part.tolist() for part in parts]


@pytest.mark.parametrize(
    ("count", "fraction", "size"),
    [
        (10, 0.1, 1),
        (100, 0.25, 25),
        (5, 0.01, 1),
        (1, 0.5, 0),
        (2, 0.9, 1),
        (3, 0.99, 2),
        (4, 1.0, 3),
        (7, 0.0, 0),
        (0, 0.5, 0),
    ],
)
def test_held_out_size_leaves_at_least_one_to_train_on(count, fraction, size):
    assert held_out_size(count, fraction) == size


@given(parts_of_clients, st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 99))
def test_every_sample_is_either_kept_or_held_out_by_its_client(parts, fraction, seed):
    kept, held_out = hold_out(parts, fraction, np.random.default_rng(seed))
    assert [sorted(both) for both in map(np.append, kept, held_out)] == lists(parts)
    assert list(map(len, held_out)) == [held_out_size(len(part), fraction) for part in parts]


def test_held_out_samples_are_drawn_at_random():
    drawn = [hold_out([np.arange(10)], 0.3, np.random.default_rng(seed))[1][0] for seed in range(500)]
    # hypergeometric: each sample with probability 0.3, so binomial(500, 0.3) with standard deviation 10
    np.testing.assert_allclose(np.bincount(np.concatenate(drawn), minlength=10), 150, atol=40)


def test_held_out_samples_are_a_pure_function_of_the_generator():
    first, again, other = (lists(hold_out([np.arange(20)], 0.5, np.random.default_rng(seed))[1]) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@given(parts_of_clients, st.data())
def test_clients_hold_out_everything_or_nothing(parts, data):
    training = data.draw(st.integers(0, len(parts)))
    kept, held_out = hold_out_clients(parts, training)
    nothing = [[]] * len(parts)
    assert lists(kept) == lists(parts)[:training] + nothing[training:]
    assert lists(held_out) == nothing[:training] + lists(parts)[training:]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.floats(0.01, 0.9), st.integers(1, 10))
def test_what_overlaps_is_held_out_from_the_end_behind_a_gap(counts, fraction, overlap):
    parts = [np.arange(100 * client, 100 * client + count) for client, count in enumerate(counts)]
    kept, held = hold_out([part[::-1] for part in parts], fraction, np.random.default_rng(0), overlap)
    for part, train, test in zip(parts, kept, held, strict=True):
        assert test.tolist() == part[len(part) - held_out_size(len(part), fraction) :].tolist()
        assert len(train) >= 1
        assert train.tolist() == part[: len(train)].tolist()
        if len(test) and len(train) > 1:
            assert test[0] - train[-1] == overlap + 1
