from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.metrics.functional import (
    client_percentiles,
    client_summary,
    fairness_summary,
    superquantile,
    weighted_quantile,
)

clients = st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9)), min_size=1, max_size=12).filter(
    lambda pairs: any(weight for _, weight in pairs)
)


def tensors(pairs):
    values, weights = zip(*pairs, strict=True)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(weights)


@pytest.mark.slow
@given(clients, st.integers(0, 40))
def test_weighted_quantile_is_its_definition(pairs, forties):
    wanted = Fraction(forties, 40) * sum(weight for _, weight in pairs)
    reaching = (x for x, _ in pairs if sum(weight for value, weight in pairs if value <= x) >= wanted)
    assert weighted_quantile(*tensors(pairs), forties / 40) == min(reaching)


@given(clients, st.integers(1, 40))
def test_superquantile_is_the_minimum_of_its_variational_form(pairs, forties):
    # Rockafellar & Uryasev: min over eta of eta + E[max(x - eta, 0)] / tail, reached at one of the values
    values, weights = (tensor.numpy() for tensor in tensors(pairs))
    tail, mass = forties / 40, weights / weights.sum()
    expected = min(eta + (mass * np.maximum(values - eta, 0)).sum() / tail for eta in values)
    assert superquantile(*tensors(pairs), tail).item() == pytest.approx(expected, abs=1e-9)


def test_share_that_meets_a_tie_is_not_missed_by_float_error():
    # 100 * 0.07 = 7.000000000000001
    values, ones = torch.arange(1.0, 101), torch.ones(100)
    assert [weighted_quantile(values, ones, place / 100) for place in range(1, 101)] == list(range(1, 101))


def test_summary_of_three_clients():
    # deviations from the mean: -1/4, 1/4, 0
    summary = client_summary(torch.tensor([0.5, 1.0, 0.75]), torch.tensor([1, 3, 4]))
    expected = {"mean": 0.75, "weighted_mean": 0.8125, "std": (0.125 / 3) ** 0.5, "worst": 0.5}
    assert {name: value.item() for name, value in summary.items()} == pytest.approx(expected)


@given(clients)
def test_percentiles_agree_with_numpy_and_with_the_weighted_quantile(pairs):
    values, weights = tensors(pairs)
    summary = client_percentiles(values, weights, (0, 5, 50, 95, 100))
    assert list(summary) == [f"{kind}p{number}" for number in (0, 5, 50, 95, 100) for kind in ("", "weighted_")]
    for number in (0, 5, 50, 95, 100):
        assert summary[f"p{number}"].item() == pytest.approx(np.percentile(values, number))
        assert summary[f"weighted_p{number}"] == weighted_quantile(values, weights, number / 100)


def test_everything_is_nan_without_clients():
    none = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    numbers = [weighted_quantile(*none, 0.5), superquantile(*none, 0.5)]
    numbers += [*client_summary(*none).values(), *client_percentiles(*none, (5, 95)).values()]
    assert len(numbers) == 10
    assert all(number.shape == () and number.isnan() for number in numbers)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any))
def test_fairness_is_its_definition(numbers):
    values = torch.tensor(numbers, dtype=torch.float64)
    shares = values.numpy() / sum(numbers)
    differences = np.abs(np.subtract.outer(numbers, numbers)).sum()
    logs = sum(share * np.log(share) for share in shares if share)
    found = {name: value.item() for name, value in fairness_summary(values).items()}
    assert found["gini"] == pytest.approx(differences / (2 * len(numbers) * sum(numbers)), abs=1e-12)
    assert found["jain"] == pytest.approx(sum(numbers) ** 2 / (len(numbers) * sum(n * n for n in numbers)))
    assert found["entropy"] == pytest.approx(-logs / np.log(len(numbers)) if len(numbers) > 1 else 1.0, abs=1e-12)


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [-1.0, 2.0]])
def test_fairness_of_what_cannot_be_shared_out_is_not_defined(values):
    assert all(value.isnan() for value in fairness_summary(torch.tensor(values)).values())
