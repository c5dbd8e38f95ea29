"""Each client's value against scikit-learn's on the client's samples alone."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics import MeanAbsoluteError, R2Score, TweedieDevianceScore
from torchmetrics.classification import (
    AUROC,
    BinaryAUROC,
    BinaryF1Score,
    BinaryJaccardIndex,
    BinaryRecall,
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassF1Score,
)
from torchmetrics.utilities.prints import rank_zero_only

from pfl_lightning.metrics import ClientMetric, build_metric, metric_name
from pfl_lightning.tasks import Classification, Regression


def draws(classes, samples=40, seed=0):
    random = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (samples,), generator=random)
    outputs = torch.randn(samples, classes, generator=random)
    return outputs + 0.8 * torch.nn.functional.one_hot(targets, classes), targets


def measured(make, outputs, targets, classes):
    task = (Regression if targets.is_floating_point() else Classification)().sized(classes)
    return float(ClientMetric(1, build_metric(make, task), "one", task).measure(outputs, targets))


def test_the_area_under_the_curve_is_that_of_scikit_learn():
    outputs, targets = draws(3)
    expected = sk.roc_auc_score(targets, outputs.softmax(1), multi_class="ovr")
    assert measured(MulticlassAUROC, outputs, targets, 3) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("make", [BinaryAUROC, partial(AUROC, task="binary"), MulticlassAUROC])
def test_two_classes_may_have_one_output_or_two(make):
    outputs, targets = draws(2)
    logit = (outputs[:, 1] - outputs[:, 0])[:, None]
    expected = sk.roc_auc_score(targets, logit[:, 0])
    assert measured(make, logit, targets, 2) == pytest.approx(expected, abs=1e-6)
    assert measured(make, outputs, targets, 2) == pytest.approx(expected, abs=1e-6)


def test_outputs_between_0_and_1_are_logits_like_all_others():
    outputs, targets = torch.tensor([[0.4], [0.6], [0.9], [0.2]]), torch.tensor([0, 1, 1, 0])
    assert measured(BinaryF1Score, outputs, targets, 2) == pytest.approx(2 / 3)  # all are above a share of 0.5


def test_a_metric_of_numbers_takes_a_regression():
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.0, 2.0, 2.0])
    assert measured(MeanAbsoluteError, outputs, targets, 1) == 1.0


def test_a_value_per_class_is_averaged_over_the_classes_that_the_client_holds():
    outputs, targets = draws(5)
    few = (targets == 1) | (targets == 3)
    shares = outputs[few].softmax(1)
    expected = np.mean([sk.roc_auc_score(targets[few] == label, shares[:, label]) for label in (1, 3)])
    found = measured(partial(MulticlassAUROC, average="none"), outputs[few], targets[few], 5)
    assert found == pytest.approx(expected, abs=1e-6)
    assert np.isnan(measured(MulticlassAUROC, outputs[few], targets[few], 5)), "classes that are absent have no area"


@pytest.mark.parametrize("make", [MulticlassAUROC, partial(MulticlassAUROC, average="none"), BinaryAUROC])
def test_a_client_of_one_class_has_no_area_under_a_curve(make):
    outputs, targets = draws(2)
    assert np.isnan(measured(make, outputs[targets == 1], targets[targets == 1], 2))


@pytest.mark.parametrize("make", [BinaryRecall, BinaryF1Score, BinaryJaccardIndex])
def test_a_client_without_positives_has_no_share_of_them(make):
    outputs, targets = draws(2)
    assert np.isnan(measured(make, outputs, targets * 0, 2))
    assert measured(make, outputs, targets, 2) > 0


def test_one_sample_has_no_r2():
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.0, 2.0, 2.0])
    assert np.isnan(measured(R2Score, outputs[:1], targets[:1], 1))
    assert measured(R2Score, outputs, targets, 1) == pytest.approx(sk.r2_score(targets, outputs))


def test_numbers_that_a_metric_refuses_are_refused_by_its_name():
    outputs, targets = Regression().sized(1).examples()
    assert measured(partial(TweedieDevianceScore, power=1), outputs, targets, 1) == 0, "examples are positive"
    with pytest.raises(ValueError, match=r"^TweedieDevianceScore of a client: For power=1"):
        measured(partial(TweedieDevianceScore, power=1), -outputs, targets, 1)


def test_a_client_of_one_class_has_no_area_in_a_process_where_torchmetrics_does_not_warn(monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    outputs, targets = draws(2)
    assert np.isnan(measured(BinaryAUROC, outputs[targets == 1], targets[targets == 1], 2))
    assert rank_zero_only.rank == 1


def test_clients_without_a_value_are_left_out_and_counted():
    metric = ClientMetric(5, BinaryAUROC(), "auroc", Classification().sized(2))
    metric.update(torch.tensor([4, 0]), torch.tensor([3, 9]), torch.tensor([0.5, float("nan")]))
    metric.update(torch.tensor([2]), torch.tensor([1]), torch.tensor([1.0]))
    found = {name: value.item() for name, value in metric.compute().items()}
    # clients 2 and 4 with 1 and 3 samples: (1 + 3 * 0.5) / 4
    assert found == {"mean": 0.75, "weighted_mean": 0.625, "std": 0.25, "worst": 0.5, "left_out": 3}
    assert [column.tolist() for column in metric.scores()] == [[2, 4], [1, 3], [1.0, 0.5]]


@pytest.mark.parametrize(
    ("metric", "name", "higher"),
    [
        (MulticlassF1Score(3), "f1", True),
        (BinaryAUROC(), "auroc", True),
        (MeanAbsoluteError(), "mean_absolute_error", False),
        (MulticlassCalibrationError(3), "calibration_error", False),
    ],
)
def test_a_metric_has_a_short_name_and_a_better_side(metric, name, higher):
    assert metric_name(metric) == name
    assert ClientMetric(1, metric, name, Classification().sized(3)).score_kind.higher_is_better == higher
