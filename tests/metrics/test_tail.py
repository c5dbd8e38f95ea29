"""Weights of the tail, by hand as in docs/evidence/derivations.md, Smoothed superquantile and what is before it."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from pfl_lightning.metrics import smooth_quantile, superquantile, tail_weights, weighted_quantile

EQUAL = [1, 1, 1, 1]
TIED = ([1, 2, 2, 2, 5], [1, 1, 1, 1, 1])
# values, weights, tail, quantile at 1 - tail, superquantile, its weights; ([1, 2, 3, 4], [1, 2, 3, 4], 0.5) has
# (4 * .4 + 3 * .1) / .5 = 3.8 (docs/evidence/derivations.md, Quantile and superquantile)
TABLE = [
    ([1, 2, 3, 4], EQUAL, 0.8, 1, 2.875, [0.0625, 0.3125, 0.3125, 0.3125]),
    ([1, 2, 3, 4], EQUAL, 0.5, 2, 3.5, [0, 0, 0.5, 0.5]),
    ([1, 2, 3, 4], [1, 2, 3, 4], 1.0, 1, 3.0, [0.1, 0.2, 0.3, 0.4]),
    ([1, 2, 3, 4], [1, 2, 3, 4], 0.5, 3, 3.8, [0, 0, 0.2, 0.8]),
    (*TIED, 0.8, 1, 2.75, [0, 0.25, 0.25, 0.25, 0.25]),
    (*TIED, 0.25, 2, 4.4, [0, 0.2 / 3, 0.2 / 3, 0.2 / 3, 0.8]),
    (*TIED, 0.1, 5, 5, [0, 0, 0, 0, 1]),
    ([3, 1, 2], [5, 3, 2], 0.8, 1, 2.5, [0.625, 0.125, 0.25]),
]
# values, weights, tail, smoothing, threshold, value of the smoothed superquantile, its weights
SMOOTH = [
    ([1, 2, 3, 4], EQUAL, 0.5, 0.5, 2, 3.25, [0, 0, 1 / 2, 1 / 2]),
    ([1, 2, 3, 4], EQUAL, 0.6, 0.5, 1.8, 3.025, [0, 1 / 6, 5 / 12, 5 / 12]),
    ([1, 2, 3, 4], [1, 2, 3, 4], 0.5, 0.5, 17 / 6, 43 / 12, [0, 0, 0.2, 0.8]),
    ([1, 2, 3, 4], EQUAL, 0.6, 3, 0.6, 349 / 180, [1 / 18, 7 / 36, 1 / 3, 5 / 12]),
    (*TIED, 0.5, 0.5, 1.75, 3.025, [0, 0.2, 0.2, 0.2, 0.4]),
]

clients = st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9)), min_size=1, max_size=12).filter(
    lambda pairs: any(weight for _, weight in pairs)
)


def tensors(values, weights):
    return torch.tensor(values, dtype=torch.float64), torch.tensor(weights)


def smoothed(values, weights, tail, smoothing, threshold):
    """eta + sum_k w_k h(x_k - eta) / tail with h the smoothed positive part, by numpy."""
    excess = np.asarray(values) - threshold
    pieces = np.where(excess < smoothing, np.maximum(excess, 0) ** 2 / (2 * smoothing), excess - smoothing / 2)
    return threshold + (np.asarray(weights) / np.sum(weights) * pieces).sum() / tail


@pytest.mark.parametrize(("values", "weights", "tail", "quantile", "mean", "shares"), TABLE)
def test_quantile_superquantile_and_its_weights(values, weights, tail, quantile, mean, shares):
    values, weights = tensors(values, weights)
    threshold = weighted_quantile(values, weights, 1 - tail)
    assert threshold == weighted_quantile(values.float(), weights, 1 - tail) == quantile
    assert superquantile(values.float(), weights, tail).item() == pytest.approx(mean, abs=1e-6)
    found = tail_weights(values, weights, tail, threshold)
    torch.testing.assert_close(found / found.sum(), torch.tensor(shares, dtype=torch.float64))


@given(clients, st.integers(1, 40))
def test_the_weighted_mean_of_the_tail_is_the_superquantile(pairs, forties):
    values, weights = tensors(*zip(*pairs, strict=True))
    tail = forties / 40
    found = tail_weights(values, weights, tail, weighted_quantile(values, weights, 1 - tail))
    assert (found <= weights).all()
    assert (found.sum() / weights.sum()).item() == pytest.approx(tail, abs=1e-9)
    assert ((found * values).sum() / found.sum()).item() == pytest.approx(
        superquantile(values, weights, tail).item(), abs=1e-9
    )


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 9)), min_size=1, max_size=8),
    st.floats(0.1, 1),
    st.floats(0.01, 0.99),
)
def test_values_that_are_far_apart_have_a_smoothed_quantile_in_closed_form(pairs, smoothing, tail):
    """x_i - nu (tail - A_i) / a_i, where i has the quantile and A_i is the share of the larger ones."""
    gaps, weights = map(np.array, zip(*pairs, strict=True))
    values, shares = np.cumsum(gaps + smoothing), weights / weights.sum()
    larger = shares[::-1].cumsum()[::-1] - shares
    i = np.flatnonzero(larger < tail)[0]
    assume(1e-6 < tail - larger[i] < shares[i] - 1e-6)  # at a tie a whole interval is optimal
    found = smooth_quantile(*tensors(values, weights), tail, smoothing).item()
    assert found == pytest.approx(values[i] - smoothing * (tail - larger[i]) / shares[i], abs=1e-9)


def test_an_old_threshold_gives_the_clients_above_it_their_full_weight():
    values, weights = tensors([1, 2, 3, 4], [1, 2, 3, 4])
    assert tail_weights(values, weights, 0.5, torch.tensor(1.5)).tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize(("values", "weights", "tail", "smoothing", "threshold", "expected", "shares"), SMOOTH)
def test_the_smoothed_quantile_minimises_the_smoothed_superquantile(
    values, weights, tail, smoothing, threshold, expected, shares
):
    found = smooth_quantile(*tensors(values, weights), tail, smoothing)
    assert found.item() == pytest.approx(threshold)
    assert smoothed(values, weights, tail, smoothing, found.item()) == pytest.approx(expected)
    kept = tail_weights(*tensors(values, weights), tail, found, smoothing)
    torch.testing.assert_close(kept / kept.sum(), torch.tensor(shares, dtype=torch.float64))


@given(clients, st.integers(1, 40), st.sampled_from([0.1, 0.7, 2.0, 30.0]))
def test_no_other_threshold_is_better(pairs, forties, smoothing):
    values, weights = zip(*pairs, strict=True)
    tail = forties / 40
    found = smooth_quantile(*tensors(values, weights), tail, smoothing).item()
    best = smoothed(values, weights, tail, smoothing, found)
    other = minimize_scalar(lambda eta: smoothed(values, weights, tail, smoothing, eta), bounds=(-50, 10))
    assert best <= other.fun + 1e-6
    gap = superquantile(*tensors(values, weights), tail).item() - best
    assert -1e-9 <= gap <= smoothing / (2 * tail) + 1e-9
    kept = tail_weights(*tensors(values, weights), tail, torch.tensor(found, dtype=torch.float64), smoothing)
    assert (kept.sum() / sum(weights)).item() == pytest.approx(tail, abs=1e-6)


def test_smoothing_that_is_nearly_zero_gives_the_quantile():
    values, weights = tensors([1, 2, 3, 4], [1, 2, 3, 4])
    for tail in (0.8, 0.5, 0.3):
        found = smooth_quantile(values, weights, tail, 1e-9)
        assert found.item() == pytest.approx(weighted_quantile(values, weights, 1 - tail).item(), abs=1e-8)
