import pytest
import torch
from fakes.tasks import Copies

from pfl_lightning.metrics import ClientScore
from pfl_lightning.score_kind import LOSS
from pfl_lightning.tasks import Classification, Regression

# client, samples, correct, sum of losses
TASK = Classification().sized(3)
RESULTS = [(4, 10, 5, 20.0), (0, 4, 4, 2.0), (2, 6, 3, 3.0), (4, 10, 10, 10.0)]


def filled(*batches, **options):
    metric = ClientScore(6, TASK, **options)
    for batch in batches:
        ids, samples, correct, losses = map(torch.tensor, zip(*batch, strict=True))
        metric.update(ids, samples, {"correct": correct, "loss": losses})
    return metric


@pytest.mark.parametrize(
    "batches", [[RESULTS], [RESULTS[:1], RESULTS[1:]], [[row] for row in reversed(RESULTS)]], ids=["one", "two", "each"]
)
def test_results_add_up_in_any_batches(batches):
    # client 4: 15 of 20 correct, loss 30 / 20; clients 1, 3 and 5 have no samples
    metric = filled(*batches)
    scores = metric.scores()
    columns = [("client", [0, 2, 4]), ("samples", [4, 6, 20]), ("correct", [4, 3, 15]), ("loss", [0.5, 0.5, 1.5])]
    assert [(name, column.tolist()) for name, column in metric.columns(scores).items()] == columns
    assert metric.values(scores).tolist() == [1.0, 0.5, 0.75]


def test_summary_is_over_the_clients_with_samples():
    # accuracies 1, 1/2, 3/4 of 4, 6 and 20 samples: 22 of 30 samples are correct
    summary = filled(RESULTS).compute()
    expected = {"mean": 0.75, "weighted_mean": 22 / 30, "std": (0.125 / 3) ** 0.5, "worst": 0.5}
    assert {name: value.item() for name, value in summary.items()} == pytest.approx(expected)


def test_an_rmse_is_pooled_over_all_samples_together():
    # squared errors 4 and 4, and 100, 1 and 1: RMSE 2 and sqrt(34), of all sqrt(22)
    metric = ClientScore(3, Regression().sized(1))
    outputs, targets = torch.tensor([[2.0], [2.0], [10.0], [1.0], [1.0]]), torch.zeros(5)
    rows = metric.task[0].statistics(outputs, targets) | {"loss": torch.zeros(5)}
    metric.update(torch.tensor([2, 2, 0, 0, 0]), torch.ones(5, dtype=torch.int64), rows)
    summary = metric.compute()
    assert summary["pooled"].item() == pytest.approx(22**0.5)
    assert summary["mean"].item() == pytest.approx((2 + 34**0.5) / 2)
    assert "pooled" not in filled(RESULTS).compute()


def test_update_without_samples_leaves_no_clients():
    metric = filled([(3, 0, 0, 0.0)])
    assert len(metric.scores().ids) == 0
    assert all(value.isnan() for value in metric.compute().values())


def test_losses_of_any_float_type_are_accepted():
    metric = ClientScore(2, TASK)
    for dtype in (torch.float64, torch.bfloat16):
        sums = {"correct": torch.tensor([1]), "loss": torch.tensor([3.0], dtype=dtype)}
        metric.update(torch.tensor([1]), torch.tensor([2]), sums)
    assert metric.columns(metric.scores())["loss"].tolist() == [1.5]


def test_the_worst_loss_is_the_largest():
    # losses 1/2, 1/2 and 3/2 of 4, 6 and 20 samples
    summary = {name: value.item() for name, value in filled(RESULTS, score_kind=LOSS).compute().items()}
    expected = {"mean": 2.5 / 3, "weighted_mean": 35 / 30, "std": (2 / 9) ** 0.5, "worst": 1.5}
    assert summary == pytest.approx(expected)


def test_clients_without_a_score_are_left_out_and_counted():
    # hits of amounts: 3 of 4, none of 0, 1 of 2; the other two clients have no samples
    metric = ClientScore(5, Copies().sized(3))
    sums = {"hits": torch.tensor([3, 0, 1]), "amount": torch.tensor([4, 0, 2]), "loss": torch.tensor([2.0, 0.0, 3.0])}
    metric.update(torch.tensor([0, 2, 4]), torch.tensor([5, 1, 3]), sums)
    summary = {name: value.item() for name, value in metric.compute().items()}
    expected = {"mean": 0.625, "weighted_mean": (5 * 0.75 + 3 * 0.5) / 8, "std": 0.125, "worst": 0.5, "left_out": 3}
    assert summary == pytest.approx(expected)
    losses = metric.scores().mean_losses
    assert losses[[0, 2]].tolist() == [0.5, 1.5], "of an amount of 1"
    assert losses[1].isnan()


def test_a_loss_that_is_not_a_number_is_not_left_out():
    summary = filled([*RESULTS, (1, 2, 1, float("nan"))], score_kind=LOSS).compute()
    assert summary["mean"].isnan()
    assert "left_out" not in summary
