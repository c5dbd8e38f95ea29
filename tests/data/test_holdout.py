import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.data.holdout import HeldOut, held_out_size, hold_out, hold_out_clients, limit_samples
from pfl_lightning.errors import PflError

# clients with 0 to 9 samples each, whose numbers are their places in the data
parts_of_clients = st.lists(st.integers(0, 9), min_size=1, max_size=6).map(
    lambda sizes: np.split(np.arange(100, 100 + sum(sizes)), np.cumsum(sizes)[:-1])
)

OPTIONS = {
    "val_fraction": 0.25,
    "test_fraction": None,
    "val_clients": 0.0,
    "test_clients": 0.0,
    "choice_fraction": 0.0,
}


def lists(parts):
    return [part.tolist() for part in parts]


def test_held_out_size_leaves_at_least_one_to_train_on():
    cases = [(100, 0.25, 25), (5, 0.01, 1), (1, 0.5, 0), (3, 0.99, 2), (4, 1.0, 3), (7, 0.0, 0), (0, 0.5, 0)]
    assert [held_out_size(count, fraction) for count, fraction, _ in cases] == [size for _, _, size in cases]


@given(parts_of_clients, st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 99))
def test_every_sample_is_either_kept_or_held_out_by_its_client(parts, fraction, seed):
    kept, held_out = hold_out(parts, fraction, np.random.default_rng(seed))
    assert [sorted(both) for both in map(np.append, kept, held_out)] == lists(parts)
    assert list(map(len, held_out)) == [held_out_size(len(part), fraction) for part in parts]


@pytest.mark.parametrize(
    "draw",
    [
        lambda parts, rng: hold_out(parts, 0.3, rng)[1],
        lambda parts, rng: limit_samples({"val": parts}, 3, rng)["val"],
    ],
)
def test_samples_are_drawn_at_random(draw):
    drawn = [draw([np.arange(10)], np.random.default_rng(seed))[0] for seed in range(500)]
    # hypergeometric: each sample with probability 0.3, so binomial(500, 0.3) with standard deviation 10
    np.testing.assert_allclose(np.bincount(np.concatenate(drawn), minlength=10), 150, atol=40)


@given(parts_of_clients, st.data())
def test_clients_hold_out_everything_or_nothing(parts, data):
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(parts))] * 2)))
    kept, held_out = hold_out_clients(parts, range(start, stop))
    own, nothing = lists(parts), [[]] * len(parts)
    assert lists(kept) == own[:start] + nothing[start:stop] + own[stop:]
    assert lists(held_out) == nothing[:start] + own[start:stop] + nothing[stop:]


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


@pytest.mark.parametrize(("test_clients", "val_clients"), [(0.0, 0.0), (0.5, 0.5), (0.0, 0.3), (0.9, 0.1)])
def test_every_client_has_one_role_and_shares_are_rounded_in_favour_of_the_held_out(test_clients, val_clients):
    held_out = HeldOut(**{**OPTIONS, "test_clients": test_clients, "val_clients": val_clients})
    for num_clients in (1, 20, 21, 877, 1730):
        roles = held_out.roles(num_clients)
        assert [*roles.training, *roles.validation, *roles.test] == list(range(num_clients))
        assert 0 <= len(roles.test) - num_clients * test_clients < 1
        assert -1e-9 <= len(roles.validation) - (num_clients - len(roles.test)) * val_clients < 1


@pytest.mark.parametrize("overlap", [0, 3])
def test_choice_samples_are_taken_from_the_test_clients_alone(overlap):
    parts = np.split(np.arange(60), [10, 20, 21])  # 10, 10, 1 and 39 samples; the last two clients test
    held_out = HeldOut(**{**OPTIONS, "test_clients": 0.5, "choice_fraction": 0.25})
    without = HeldOut(**{**OPTIONS, "test_clients": 0.5})
    assigned, before = (shares.assign([parts], np.random.default_rng(0), overlap) for shares in (held_out, without))
    assert "choice" not in before
    assert lists(assigned["train"] + assigned["val"]) == lists(before["train"] + before["val"])
    assert list(map(len, assigned["choice"])) == [0, 0, 0, 10]
    assert lists(assigned["test"])[:3] == [[], [], [20]]
    assert sorted(assigned["test"][3].tolist() + assigned["choice"][3].tolist()) == [
        number for number in range(21, 60) if not overlap or number not in (47, 48, 49)
    ]
    if overlap:  # successive samples share content with the three before them
        assert assigned["choice"][3].tolist() == list(range(50, 60))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"choice_fraction": 0.5}, "data.choice_fraction must be 0 without data.test_clients, got 0.5"),
        ({"test_clients": 1.0}, "data.test_clients: 1.0 leaves no client to train; set a smaller one"),
        ({"val_clients": 1.0}, "data.val_clients: 1.0 leaves no client to train; set a smaller one"),
        (
            {"test_clients": 0.5, "val_clients": 0.8},
            "data.val_clients: 0.8 leaves no client to train; set a smaller one",
        ),
        (
            {"test_clients": 0.5, "test_fraction": 0.2},
            "data.test_fraction and data.test_clients exclude each other; set one of them",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused_in_one_line(options, line):
    with pytest.raises(PflError, match=f"^{line}$"):
        HeldOut(**{**OPTIONS, **options}).check(8)


@given(parts_of_clients, st.none() | st.integers(1, 9), st.sampled_from([0.1, 0.25, 0.9, 1.0]), st.integers(0, 99))
def test_at_most_so_many_samples_and_a_share_but_at_least_one_are_drawn_of_each_client(parts, most, share, seed):
    drawn = limit_samples({"train": parts}, most, np.random.default_rng(seed), share)["train"]
    assert [len(set(part)) for part in lists(drawn)] == [
        min(len(part), most or len(part), max(1, round(share * len(part)))) for part in parts
    ]
    assert all(set(chosen) <= set(part) for chosen, part in zip(lists(drawn), lists(parts), strict=True))
