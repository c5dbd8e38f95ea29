"""The losses and scores of tasks against torch's, and what each of them refuses."""

from math import exp, log

import pytest
import torch
from torch import nn

from pfl_lightning.client.losses import UsualLoss
from pfl_lightning.tasks import Classification, Regression, as_outputs, log_probabilities

LABELS = torch.tensor([[1, 0, 1]])
NUMBERS = torch.tensor([[0.5, -1.0, 2.0]])
PAIRS = torch.tensor([[[0.5, 1.0], [-1.0, 0.0], [2.0, 3.0]]])
CLASSES = Classification().sized(3)
CASES = {
    "one output": (CLASSES, 1, LABELS),
    "two outputs": (CLASSES, 2, LABELS),
    "three outputs": (CLASSES, 3, LABELS),
    "a number": (Regression().sized(1), 1, NUMBERS),
    "two numbers": (Regression().sized(2), 2, PAIRS),
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
    ],
)
def test_targets_of_another_task_are_refused(task, targets, line):
    with pytest.raises(ValueError, match=f"^{line}$"):
        task.check(targets)
