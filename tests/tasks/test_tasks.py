"""The losses and scores of tasks against torch's, and what each of them refuses."""

from math import exp, log, nan

import pytest
import torch
from sklearn.metrics import f1_score, hamming_loss, mean_absolute_error, mean_squared_error, r2_score
from torch import nn

from pfl_lightning.client.losses import UsualLoss
from pfl_lightning.errors import PflError
from pfl_lightning.tasks import Classification, MultiLabel, Regression, as_outputs, log_probabilities

LABELS = torch.tensor([[1, 0, 1]])
NUMBERS = torch.tensor([[0.5, -1.0, 2.0]])
PAIRS = torch.tensor([[[0.5, 1.0], [-1.0, 0.0], [2.0, 3.0]]])
CLASSES = Classification().sized(3)
LABELLED = torch.tensor([[[1, 0, -1], [-1, -1, 1], [0, 1, 1]]], dtype=torch.int8)
THREE = MultiLabel().sized(3)
WEIGHTED = MultiLabel(pos_weight=[2.0, 0.5, 3.0]).sized(3)
SCALED = Regression(mean=[1.0, -2.0], deviation=[2.0, 0.5]).sized(2)
CASES = {
    "one output": (CLASSES, 1, LABELS),
    "two outputs": (CLASSES, 2, LABELS),
    "three outputs": (CLASSES, 3, LABELS),
    "a number": (Regression().sized(1), 1, NUMBERS),
    "two numbers": (Regression().sized(2), 2, PAIRS),
    "two scaled numbers": (SCALED, 2, PAIRS),
    "three labels": (THREE, 3, LABELLED),
    "three weighted labels": (WEIGHTED, 3, LABELLED),
}
every_case = pytest.mark.parametrize(("task", "outputs", "targets"), CASES.values(), ids=CASES)


def test_one_output_is_the_logistic_loss():
    # -log sigmoid(2) for label 1, -log(1 - sigmoid(2)) for label 0, log 2 at 0
    expected = [log(1 + exp(-2)), log(1 + exp(2)), log(2)]
    losses = CLASSES.losses(torch.tensor([[2.0], [2.0], [0.0]]), LABELS[0])
    assert losses.tolist() == pytest.approx(expected, abs=1e-12)


def test_numbers_have_half_the_squared_error_and_several_its_mean():
    assert Regression().losses(torch.tensor([[1.5], [-1.0], [0.0]]), NUMBERS[0]).tolist() == [0.5, 0.0, 2.0]
    assert Regression().losses(torch.tensor([[1.5, 4.0]]), PAIRS[0, :1]).tolist() == [(1 + 9) / 4]


def test_networks_learn_numbers_less_their_mean_over_their_deviation_and_so_does_a_loss_of_the_users_own():
    # half of 0.5 less 1, and twice 1 more than -2
    assert SCALED.learned(PAIRS[0, :1]).tolist() == [[-0.25, 6.0]]
    assert SCALED.losses(torch.tensor([[0.75, 4.0]]), PAIRS[0, :1]).tolist() == [(1 + 4) / 4]
    assert SCALED.predictions(torch.tensor([[-0.25, 6.0]]), takes_classes=False).tolist() == [[0.5, 1.0]]
    own = Regression(nn.L1Loss(), mean=1.0, deviation=2.0).sized(1)
    assert own.losses(torch.tensor([[1.0]]), torch.tensor([5.0])).tolist() == [1.0]


def scores_of(task, outputs, targets):
    sums = {name: rows.sum(0, keepdim=True) for name, rows in task.statistics(outputs, targets).items()}
    return {name: value.item() for name, value in task.scores(sums, torch.tensor([len(targets)])).items()}


@pytest.mark.parametrize("task", [Regression().sized(2), SCALED], ids=["plain", "scaled"])
def test_scores_of_numbers_are_those_of_scikit_learn_in_their_unit(task):
    outputs, targets = torch.randn(2, 30, 2, generator=torch.Generator().manual_seed(4))
    predicted = task.predictions(outputs, takes_classes=False)
    expected = {
        "rmse": mean_squared_error(targets, predicted) ** 0.5,
        "mae": mean_absolute_error(targets, predicted),
        "r2": r2_score(targets, predicted),
        "rmse_0": mean_squared_error(targets[:, 0], predicted[:, 0]) ** 0.5,
        "rmse_1": mean_squared_error(targets[:, 1], predicted[:, 1]) ** 0.5,
    }
    assert scores_of(task, outputs, targets) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("targets", [[3.0], [0.1, 0.1, 0.1], [0.0, 0.0]], ids=["one", "alike", "zeros"])
def test_a_client_whose_numbers_are_all_alike_has_no_r2(targets):
    scores = scores_of(Regression().sized(1), torch.ones(len(targets), 1), torch.tensor(targets))
    assert scores["r2"] == pytest.approx(nan, nan_ok=True)
    assert scores["rmse"] == pytest.approx(abs(1 - targets[0]))


def test_several_outputs_are_the_cross_entropy_of_torch():
    outputs = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, 2, 3, 0, 3, 3, 1, 0, 2])
    expected = nn.CrossEntropyLoss(reduction="none")(outputs, targets)
    assert torch.allclose(CLASSES.losses(outputs, targets), expected, atol=1e-14)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_log_probabilities_are_minus_the_losses_of_the_classes_and_outputs_with_the_same_losses(outputs):
    values = 9 * torch.randn(3, outputs, generator=torch.Generator().manual_seed(2))
    logs = log_probabilities(values)
    for label in range(max(outputs, 2)):
        losses = CLASSES.losses(values, torch.full((3,), label))
        assert torch.allclose(-logs[..., label], losses, atol=1e-14)
        assert torch.allclose(CLASSES.losses(as_outputs(logs, outputs), torch.full((3,), label)), losses, atol=1e-14)
    assert torch.allclose(logs.exp().sum(-1), torch.ones(3))


@every_case
def test_gradients_by_formula_are_those_of_autograd(task, outputs, targets):
    values = torch.randn(1, 3, outputs, generator=torch.Generator().manual_seed(1)).requires_grad_()
    expected = task.losses(values[0], targets[0])
    (slopes,) = torch.autograd.grad(expected.sum(), values)
    losses, gradients = UsualLoss(task).with_gradients(values.detach(), targets)
    assert torch.allclose(losses[0], expected, atol=1e-14)
    assert torch.allclose(gradients, slopes, atol=1e-14)
    assert gradients.abs().max() > 0.1


def test_a_prediction_is_the_larger_output_or_the_sign_of_the_only_one():
    of_two = CLASSES.statistics(torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 2.0]]), LABELS[0])
    of_one = CLASSES.statistics(torch.tensor([[0.3], [-0.1], [-2.0]]), LABELS[0])
    assert of_two["correct"].tolist() == [True, False, False]
    assert of_one["correct"].tolist() == [True, True, False]


@every_case
def test_examples_are_targets_of_the_task_and_are_predicted_best(task, outputs, targets):
    values, right = task.examples()
    task.check(right)
    assert len(task.labels(right)) == len(values)
    assert task.losses(values, right).mean() < task.losses(-values, right).mean()


@pytest.mark.parametrize(
    ("task", "targets", "line"),
    [
        (CLASSES, torch.zeros(4, 2, dtype=torch.int64), r"targets must have the shape \[samples\], got \[4, 2\]"),
        (CLASSES, torch.zeros(4), "targets must be whole numbers, int64, got torch.float32"),
        (CLASSES, torch.tensor([0, 3]), "labels must be whole numbers from 0 to 2, got 3 in sample 1"),
        (Regression().sized(1), torch.zeros(4, 1), r"targets must have the shape \[samples\], got \[4, 1\]"),
        (Regression().sized(2), torch.zeros(4), r"targets must have the shape \[samples, 2\], got \[4\]"),
        (Regression().sized(1), torch.zeros(4, dtype=torch.int64), "targets must be real numbers, got torch.int64"),
        (Regression().sized(1), torch.tensor([0, torch.nan]), "targets must be finite numbers, got nan in sample 1"),
        (SCALED.sized(3), torch.zeros(4, 3), "mean and deviation must be 1 number or 3, got 2"),
        (THREE, torch.zeros(4, dtype=torch.int64), r"targets must have the shape \[samples, 3\], got \[4\]"),
        (THREE, torch.zeros(4, 2, dtype=torch.int8), r"targets must have the shape \[samples, 3\], got \[4, 2\]"),
        (THREE, torch.zeros(4, 3), "targets must be whole numbers, int8, got torch.float32"),
        (
            WEIGHTED.sized(2),
            torch.zeros(4, 2, dtype=torch.int8),
            r"pos_weight must be 2 numbers, one for each label, .*",
        ),
        (THREE, LABELLED[0] * 2, "targets must be 0, 1 or -1 for unknown, got 2 in sample 0"),
        (THREE, -torch.ones(4, 3, dtype=torch.int8), "targets must be 0 or 1 somewhere, got -1 alone"),
    ],
)
def test_targets_of_another_task_are_refused(task, targets, line):
    with pytest.raises(ValueError, match=f"^{line}$"):
        task.check(targets)


def test_the_loss_of_labels_is_the_mean_of_the_logistic_losses_of_those_that_are_known():
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(3))
    targets = torch.tensor([[1, 0, 1], [-1, 0, 1], [-1, -1, 1], [0, -1, 0], [-1, -1, -1]], dtype=torch.int8)
    known = [[place for place, target in enumerate(row) if target >= 0] for row in targets.tolist()]
    expected = [
        sum(log(1 + exp((1 - 2 * targets[row, place]) * values[row, place])) for place in places) / max(len(places), 1)
        for row, places in enumerate(known)
    ]
    assert THREE.losses(values, targets).tolist() == pytest.approx(expected, abs=1e-12)
    assert THREE.amounts(targets).tolist() == [1, 1, 1, 1, 0]
    (slopes,) = THREE.usual_gradients(values[None], targets[None])[1]
    assert slopes[targets == -1].tolist() == [0] * 7


def test_weighted_labels_have_the_logistic_loss_of_torch_and_weights_of_one_change_nothing():
    values = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
    targets = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=torch.int8).repeat(3, 1)
    weights = torch.tensor([2.0, 0.5, 3.0])
    expected = nn.BCEWithLogitsLoss(reduction="none", pos_weight=weights.to(values))(values, targets.to(values)).mean(1)
    assert torch.allclose(WEIGHTED.losses(values, targets), expected, atol=1e-14)
    ones = MultiLabel(pos_weight=[1.0, 1.0, 1.0]).sized(3)
    assert torch.equal(ones.losses(values, targets), THREE.losses(values, targets))
    with pytest.raises(PflError, match=r"^model\.task\.pos_weight must be null with model\.task\.loss, "):
        MultiLabel(nn.BCEWithLogitsLoss(), pos_weight=[1.0])


def test_scores_of_labels_are_those_of_scikit_learn_and_swap_with_the_labels():
    values = torch.randn(40, 3, generator=torch.Generator().manual_seed(4))
    targets = (torch.rand(40, 3, generator=torch.Generator().manual_seed(5)) < 0.4).to(torch.int8)
    truth, predicted = targets.numpy(), (values > 0).numpy()

    def scores(*columns):
        sums = {name: each.sum(0)[None] for name, each in MultiLabel().statistics(values, targets).items()}
        of_columns = {name: each[:, columns] for name, each in sums.items()}
        return {name: score.item() for name, score in THREE.scores(of_columns, torch.tensor([40])).items()}

    expected = {f"{kind}_f1": f1_score(truth, predicted, average=kind) for kind in ("macro", "micro")}
    expected["hamming_loss"] = hamming_loss(truth, predicted)
    assert scores(0, 1, 2) == pytest.approx(expected, abs=1e-12)
    assert scores(2, 1, 0) == pytest.approx(expected, abs=1e-12)
    assert scores(1)["macro_f1"] == pytest.approx(f1_score(truth[:, 1], predicted[:, 1]), abs=1e-12)


def test_an_f1_is_over_the_labels_that_a_client_has():
    # three clients: one with label 0 alone (1 of 2 found, 1 more said), one without any, one whose labels are unknown
    counts = {
        "true_positives": [[1, 0], [0, 0], [0, 0]],
        "false_positives": [[1, 3], [0, 2], [0, 0]],
        "false_negatives": [[1, 0], [0, 0], [0, 0]],
        "true_negatives": [[2, 2], [4, 2], [0, 0]],
    }
    sums = {name: torch.tensor(rows) for name, rows in counts.items()}
    scores = {name: values.tolist() for name, values in THREE.scores(sums, torch.tensor([5, 4, 1])).items()}
    assert scores["macro_f1"] == pytest.approx([0.5, nan, nan], nan_ok=True)
    assert scores["micro_f1"] == pytest.approx([2 / (2 + 5), 0, nan], nan_ok=True)
    assert scores["hamming_loss"] == pytest.approx([5 / 10, 2 / 8, nan], nan_ok=True)


def test_the_statistics_of_two_halves_add_up_and_unknown_labels_are_in_none():
    values = torch.randn(12, 3, generator=torch.Generator().manual_seed(6))
    targets = LABELLED[0].repeat(4, 1)
    whole, first, second = (
        THREE.statistics(values[part], targets[part]) for part in (slice(12), slice(6), slice(6, 12))
    )
    for name, rows in whole.items():
        assert torch.equal(rows.sum(0), first[name].sum(0) + second[name].sum(0))
    assert torch.equal(sum(rows.long() for rows in whole.values()), (targets >= 0).long())


def test_partitions_see_the_rarest_label_of_a_sample_and_none_as_a_class_of_its_own():
    # labels 0, 1 and 2 are there 3, 1 and 2 times; unknown ones do not count
    targets = [[1, 0, 0], [1, 0, 1], [1, 1, -1], [0, -1, 1], [0, 0, 0], [-1, -1, -1]]
    labels = THREE.labels(torch.tensor(targets, dtype=torch.int8))
    assert labels.tolist() == [0, 2, 1, 2, 3, 3]
    assert THREE.classes == 4
