import pytest
import torch

from pfl_lightning.server import client_weights
from pfl_lightning.tree import mix


@pytest.mark.parametrize(("weighting", "mean"), [("samples", 3.0), ("uniform", 2.0)])
def test_weighted_mean_of_two_clients(weighting, mean):
    # samples (1, 3), values (0, 4): (0 + 3 * 4) / 4 = 3, and (0 + 4) / 2 = 2
    weights = client_weights(torch.tensor([1, 3]), weighting)
    assert mix(weights, {"x": torch.tensor([0.0, 4.0])})["x"] == mean


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_are_float64_and_sum_to_one(weighting):
    counts = torch.randint(1, 100_000_000, (1000,), generator=torch.Generator().manual_seed(0))
    weights = client_weights(counts, weighting)
    assert weights.dtype == torch.float64
    assert weights.sum().item() == pytest.approx(1, abs=1e-14)


def test_weightings_agree_where_all_clients_have_as_many_samples():
    counts = torch.full((7,), 12)
    torch.testing.assert_close(client_weights(counts, "samples"), client_weights(counts, "uniform"))
