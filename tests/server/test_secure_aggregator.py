"""What secure sums compute, and what the server sees of a client."""

from fractions import Fraction
from functools import partial
from itertools import pairwise

import pytest
import torch
from fakes.sums import add, rows, uploads_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pfl_lightning.errors import PflError
from pfl_lightning.server import Aggregator, SecureAggregator, client_weights
from pfl_lightning.server.secure_aggregator import WEIGHT, FixedPoint

SIZE = 12
IDS = torch.tensor([31, 4, 15, 9, 2, 6, 5, 35, 8, 97, 93, 23])
WEIGHTS = client_weights(torch.arange(1, SIZE + 1), "samples")
RESOLUTION = 2.0**-42  # of the default limit, 2^20


tree_of = partial(uploads_of, SIZE, size=100.0)


def summed(sums, tree, chunks=None, silent=(), key=(1, "round")):
    """The sum of some rows, received in chunks, when some clients abstain."""
    total = sums.start(IDS, key)
    for places in chunks or [[place for place in range(SIZE) if place not in silent]]:
        add(total, IDS[places], WEIGHTS[places], rows(tree, places))
    total.abstain(IDS[list(silent)])
    return total.result()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_sum_is_the_plain_one_up_to_rounding():
    tree = tree_of()
    secure, plain = summed(SecureAggregator(), tree), summed(Aggregator(), tree)
    for name, tensor in plain.items():
        torch.testing.assert_close(secure[name], tensor, atol=SIZE * RESOLUTION, rtol=0)
    assert not same(secure, plain), "or nothing was rounded"


@pytest.mark.slow
@given(st.permutations(range(SIZE)), st.lists(st.integers(1, SIZE - 1), unique=True, max_size=5), st.booleans())
def test_chunks_order_and_masks_do_not_change_a_bit(order, cuts, masks):
    edges = [0, *sorted(cuts), SIZE]
    chunks = [list(order[start:stop]) for start, stop in pairwise(edges)]
    assert same(summed(SecureAggregator(masks=masks), tree_of(), chunks), summed(SecureAggregator(), tree_of()))


def test_encoding_can_be_repeated():
    total = SecureAggregator().start(IDS, (1,))
    first, again = (total.encode(IDS, WEIGHTS, tree_of()) for _ in range(2))
    assert same(first.tree, again.tree)
    total.add(IDS, again)
    assert same(total.result(), summed(SecureAggregator(), tree_of()))


def test_clients_that_abstain_change_nothing_but_the_bytes():
    silent, zeros = (0, 5, 7), tree_of()
    for stack in zeros.values():
        stack[list(silent)] = 0.0
    abstaining, everybody = SecureAggregator(), SecureAggregator()
    assert same(summed(abstaining, tree_of(), silent=silent), summed(everybody, zeros))
    # every participant uploads 5 * 3 + 7 + 1 numbers and its weight, 8 bytes each
    assert abstaining.scalars() == everybody.scalars() == {"sums/calls": 1.0, "sums/bytes": SIZE * 24 * 8}


def uploads(sums, value, keys, entries=16):
    """The words that the server sees of one client, over many sums of two."""
    ids, tree = torch.tensor([1, 2]), {"w": torch.full((1, entries), value)}
    seen = [sums.start(ids, (key,)).encode(ids[:1], torch.tensor([0.5]), tree).tree for key in keys]
    return torch.stack([torch.cat([part["w"], part[WEIGHT].view(1)]) for part in seen]).flatten()


@pytest.mark.slow
@pytest.mark.parametrize("value", [0.0, -3.75, 2.0**20])
def test_the_server_sees_uniform_words_whatever_the_value(value):
    def p_value(sums):
        digits = torch.bincount(uploads(sums, value, range(500)).view(torch.uint8).int(), minlength=256)
        return stats.chisquare(digits.numpy()).pvalue

    assert p_value(SecureAggregator()) > 0.01
    assert p_value(SecureAggregator(masks=False)) < 1e-100, "the test must be able to fail"


def test_weights_beyond_one_are_refused_alone_and_in_sum():
    total = SecureAggregator().start(IDS, (1,))
    for weight in (1.5, -0.25, float("nan")):
        with pytest.raises(
            PflError, match=r"^model.aggregator: weights from \S+ to \S+ are not possible; allowed: 0 to 1$"
        ):
            total.encode(IDS[:2], torch.tensor([0.5, weight]), {"w": torch.ones(2, 1)})
    for place in range(SIZE):
        add(total, IDS[place : place + 1], torch.tensor([0.085]), {"w": torch.ones(1)})
    with pytest.raises(
        PflError, match=r"^model.aggregator: weights with a sum of 1\.02 are not possible; allowed: at most 1$"
    ):
        total.result()


def test_weights_in_half_precision_may_miss_one_by_rounding():
    ids, weights = torch.arange(3), torch.full((3,), 1 / 3, dtype=torch.bfloat16)
    total = SecureAggregator().start(ids, (1,))
    add(total, ids, weights, {"w": torch.ones(3)})
    assert total.result()["w"] == weights.double().sum() > 1


def test_one_sum_may_have_a_limit_of_its_own():
    sums, weights = SecureAggregator(limit=10.0), torch.full((2,), 0.5)
    tree = {"w": torch.full((2,), 1e6)}
    with pytest.raises(PflError, match=r"^model.aggregator.limit: 10 is not possible with an upload of 1e\+06"):
        sums.start(IDS[:2], (1,)).encode(IDS[:2], weights, tree)
    total = sums.start(IDS[:2], (1,), limit=1e9)
    add(total, IDS[:2], weights, tree)
    assert total.result()["w"] == 1e6


def test_a_sum_of_one_participant_is_refused():
    with pytest.raises(
        PflError, match=r"^model.aggregator: 1 participant in a round is not possible .* allowed: 2 or more"
    ):
        SecureAggregator().start(IDS[:1], (1,))


@pytest.mark.parametrize("client", [1234, 31])
def test_every_participant_is_heard_and_only_once(client):
    total = SecureAggregator().start(IDS, (1,))
    total.abstain(IDS[:1])
    with pytest.raises(AssertionError, match=rf"heard before: \{{{client}\}}"):
        total.abstain(torch.tensor([client]))
    with pytest.raises(AssertionError, match="neither add nor abstain nor are dropped: "):
        total.result()


@pytest.mark.slow
@given(st.lists(st.integers(0, SIZE - 1), unique=True, min_size=1, max_size=SIZE - 2), st.booleans())
def test_the_masks_of_lost_clients_are_recovered(dropped, masks):
    heard = [place for place in range(SIZE) if place not in dropped]
    sums = SecureAggregator(masks=masks)
    total = sums.start(IDS, (1, "round"))
    add(total, IDS[heard], WEIGHTS[heard], rows(tree_of(), heard))
    total.drop(IDS[dropped])
    abstaining = SecureAggregator()
    assert same(total.result(), summed(abstaining, tree_of(), silent=dropped))
    # 5 * 3 + 7 + 1 numbers and the weight, 8 bytes each, of those that uploaded
    assert sums.bytes == len(heard) * 24 * 8
    assert abstaining.bytes == SIZE * 24 * 8


@given(st.floats(1, 2.0**40))
def test_places_are_the_most_that_keep_the_limit_within_62_bits(limit):
    places = FixedPoint(limit).places
    assert Fraction(limit) * 2**places <= 2**62 < Fraction(limit) * 2 ** (places + 1)


@given(st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=8))
def test_sums_of_binary_fractions_are_exact(numerators):
    code, values = FixedPoint(2.0**20), torch.tensor(numerators).double() / 1024
    weights = torch.full((len(values),), 0.125, dtype=torch.float64)
    exact = sum((Fraction(number, 8 * 1024) for number in numerators), Fraction())
    assert Fraction(float(code.decode(code.encode(weights, values)))) == exact


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_rounding_costs_at_most_half_a_step_per_client(values):
    code, numbers = FixedPoint(100.0), torch.tensor(values, dtype=torch.float64)
    weights = torch.full_like(numbers, 1 / len(values))
    exact = sum(map(Fraction, (weights * numbers).tolist()))
    word = int(code.encode(weights, numbers))
    assert abs(word - exact * 2**code.places) <= Fraction(len(values), 2)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("limit", [1.0, 100.0, 2.0**20, 2.0**40])
def test_the_largest_possible_sum_does_not_wrap(limit, sign):
    code, weights = FixedPoint(limit), torch.full((8,), 0.125, dtype=torch.float64)
    assert code.decode(code.encode(weights, torch.full((8,), sign * limit))) == sign * limit


@pytest.mark.parametrize(
    ("value", "found"), [(101.0, "101"), (-1e9, "1e+09"), (float("nan"), "nan"), (float("-inf"), "inf")]
)
def test_a_value_beyond_the_limit_is_refused_in_one_line(value, found):
    with pytest.raises(PflError) as error:
        FixedPoint(100.0).encode(torch.full((2,), 0.5).double(), torch.tensor([3.0, value]))
    assert str(error.value).startswith(
        f"model.aggregator.limit: 100 is not possible with an upload of {found}; allowed: "
    )
    assert "a smaller model.local.lr if the run diverges" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("limit", [0.5, 2.0**41, float("inf"), float("nan")])
def test_a_limit_without_enough_places_is_refused(limit):
    with pytest.raises(PflError, match=r"^model.aggregator.limit: \S+ is not possible; allowed: 1 to 1.09951e\+12$"):
        FixedPoint(limit)
