import pytest
import torch

from pfl_lightning.server import client_weights, rebase_stale_uploads
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


def test_stale_uploads_are_changes_of_the_newest_model_or_models_beside_it():
    newest, began = {"w": torch.tensor([10.0, 20.0])}, {"w": torch.tensor([[1.0, 2.0], [10.0, 20.0]])}
    trained, shares = {"w": torch.tensor([[3.0, 8.0], [11.0, 20.0]])}, torch.tensor([0.5, 1.0])
    # by changes 10 + (3 - 1) / 2 and 20 + (8 - 2) / 2; by models half-way from 10 to 3 and from 20 to 8
    changes = rebase_stale_uploads(trained, began, newest, shares, {"w"})["w"]
    assert changes.tolist() == [[11.0, 23.0], [11.0, 20.0]]
    assert rebase_stale_uploads(trained, began, newest, shares, set())["w"].tolist() == [[6.5, 14.0], [11.0, 20.0]]


def test_counters_come_back_as_numbers_between():
    found = rebase_stale_uploads(
        {"n": torch.tensor([8, 4])}, {}, {"n": torch.tensor(2)}, torch.tensor([0.5, 1.0]), set()
    )
    assert found["n"].tolist() == [5.0, 4.0]
