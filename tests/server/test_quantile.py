import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.metrics.functional import weighted_quantile
from pfl_lightning.server import ClientSums, SecureAggregator, client_weights, quantile_from_sums
from pfl_lightning.server.quantile import step


def adder(weights):
    """Adds up contributions with these weights, normalised."""
    shares = torch.as_tensor(weights, dtype=torch.float64)
    return lambda contributions: (shares / shares.sum()) @ contributions


def hundred_clients(seed):
    """Values and weights."""
    source = torch.Generator().manual_seed(seed)
    values = torch.empty(100, dtype=torch.float64).exponential_(generator=source)
    return values, torch.randint(50, 500, (100,), generator=source)


def steps_of(values, weights, share, start, resolution, count):
    """The first steps from a start."""
    values, found = torch.tensor(values, dtype=torch.float64), [start]
    for _ in range(count):
        found.append(step(values, share, found[-1], adder(weights), resolution))
    return found[1:]


# By hand, the first step from 3 with the values 1, 2, 4: beta = (1/2, 1, 1) / 3, so q = (6.5 + 3 (2 p - 1)) / 2.5,
# which is 2.6 for p = 0.5 and 3.2 for p = 0.75. The further steps are the same formula in Python's floats.
@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.5, [2.6, 2.2673267, 2.0715150, 2.0067267, 2.0000670, 2.0000000067]),
        (0.75, [3.2, 3.3970149, 3.5761357, 3.7239821, 3.8333885, 3.9058485]),
    ],
)
def test_the_first_steps_are_known(share, expected):
    assert steps_of([1, 2, 4], [1, 1, 1], share, 3.0, 1e-6, 6) == pytest.approx(expected, abs=6e-8)


@pytest.mark.parametrize("resolution", [1e-3, 1e-6])
def test_the_limit_lies_a_third_of_the_resolution_above_the_quantile(resolution):
    # at 3 + d the pull is -(0.1 + 0.2) - 0.3 d / resolution + 0.4, which is 0 at d = resolution / 3
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = quantile_from_sums(values, 0.5, adder([1, 2, 3, 4]), resolution)
    assert found == pytest.approx(3 + resolution / 3, abs=1e-9)
    assert values.double()[2] < found, "without slack, the client at the quantile is lost"
    assert values.double()[2] >= found - resolution


def test_from_a_value_the_steps_leave_it_slower_the_finer_the_resolution():
    """From 4 of 1, 2, 3, 4 and 10, whose median is 3; the numbers are those of the same formula in Python's floats."""
    coarse, fine = (steps_of([1, 2, 3, 4, 10], [1] * 5, 0.5, 4.0, each, 50) for each in (1e-3, 1e-6))
    assert coarse[:5] == pytest.approx([3.998004, 3.996016, 3.992063, 3.984252, 3.968989], abs=5e-7)
    assert [coarse[9], coarse[19], fine[19]] == pytest.approx([3.477, 3.0, 3.471], abs=5e-4)
    assert fine[49] == pytest.approx(3, abs=1e-9)
    assert steps_of([1, 2, 4], [1] * 3, 0.75, 3.0, 1e-6, 60)[-1] == pytest.approx(4, abs=1e-6)


def test_between_two_values_every_point_is_a_quantile():
    found = quantile_from_sums(torch.tensor([1.0, 2.0, 3.0, 4.0, 10.0]), 0.2, adder([1] * 5), 1e-3)
    assert 1 <= found <= 2


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_hundred_steps_keep_the_tail_of_the_exact_quantile_up_to_one_client_and_half_of_them_the_quantile(share):
    same, errors = 0, []
    for seed in range(20):
        values, weights = hundred_clients(seed)
        exact = weighted_quantile(values, weights, share)
        found = quantile_from_sums(values, share, adder(weights), 1e-6)
        differ = (values >= found - 1e-6) != (values >= exact)
        assert differ.sum() <= 1
        same += not differ.any()
        errors.append(abs(found - exact))
    assert sorted(errors)[10] < 1e-6
    assert same >= 15  # docs/evidence/derivations.md, Quantile from sums: 86 % and more of many draws


def pinball(values, weights, share, quantile, resolution):
    """The pinball loss, with |u| replaced by a parabola where it is smaller than the resolution."""
    above = values - quantile
    size = torch.where(above.abs() < resolution, above**2 / (2 * resolution) + resolution / 2, above.abs())
    return float(weights @ (size / 2 + (share - 0.5) * above) / weights.sum())


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 9)), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(-12, 12),
    st.sampled_from([1e-6, 1e-2, 1.0]),
)
def test_a_step_never_increases_the_smoothed_pinball_loss(clients, share, start, resolution):
    values, weights = (torch.tensor(column, dtype=torch.float64) for column in zip(*clients, strict=True))
    after = step(values, share, start, adder(weights), resolution)
    before_loss, after_loss = (pinball(values, weights, share, q, resolution) for q in (start, after))
    assert after_loss <= before_loss + 1e-9


@pytest.mark.parametrize("masks", [True, False])
def test_secure_sums_find_the_same_quantile_in_one_call_per_step(masks):
    sums, keys = SecureAggregator(masks=masks), set()
    start, sums.start = sums.start, lambda ids, key, limit: keys.add(key) or start(ids, key, limit)
    source = torch.Generator().manual_seed(1)
    values = 1000 * torch.rand(40, generator=source)
    weights = client_weights(torch.randint(1, 99, (40,), generator=source), "samples")
    add_up = ClientSums(sums, torch.arange(40), weights, ("quantile",), limit=1e6)
    found = quantile_from_sums(values, 0.7, add_up, steps=20)
    assert found == pytest.approx(quantile_from_sums(values, 0.7, adder(weights), steps=20), abs=1e-6)
    assert sums.calls == len(keys) == 21, "or two uploads of a client would have the same mask"
