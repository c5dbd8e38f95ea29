from math import exp, log

import pytest
import torch
from torch import nn

from pfl_lightning.client.losses import STANDARD, as_outputs, hits, log_probabilities, sample_losses

LABELS = torch.tensor([[1, 0, 1]])
NUMBERS = torch.tensor([[0.5, -1.0, 2.0]])


def test_one_output_is_the_logistic_loss():
    # -log sigmoid(2) for label 1, -log(1 - sigmoid(2)) for label 0, log 2 at 0
    expected = [log(1 + exp(-2)), log(1 + exp(2)), log(2)]
    losses = sample_losses(torch.tensor([[[2.0], [2.0], [0.0]]]), LABELS)
    assert losses[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_numbers_have_half_the_squared_error():
    losses = sample_losses(torch.tensor([[[1.5], [-1.0], [0.0]]]), NUMBERS)
    assert losses.tolist() == [[0.5, 0.0, 2.0]]


def test_several_outputs_are_the_cross_entropy_of_torch():
    outputs = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 1, 2, 3, 0], [3, 3, 1, 0, 2]])
    expected = nn.CrossEntropyLoss(reduction="none")(outputs.transpose(1, 2), targets)
    assert torch.allclose(sample_losses(outputs, targets), expected, atol=1e-14)


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_log_probabilities_are_minus_the_losses_of_the_classes_and_outputs_with_the_same_losses(outputs):
    values = 9 * torch.randn(1, 3, outputs, generator=torch.Generator().manual_seed(2))
    logs = log_probabilities(values)
    for label in range(max(outputs, 2)):
        losses = sample_losses(values, torch.full((1, 3), label))
        assert torch.allclose(-logs[..., label], losses, atol=1e-14)
        assert torch.allclose(sample_losses(as_outputs(logs, outputs), torch.full((1, 3), label)), losses, atol=1e-14)
    assert torch.allclose(logs.exp().sum(-1), torch.ones(1, 3))


@pytest.mark.parametrize(("outputs", "targets"), [(1, LABELS), (1, NUMBERS), (2, LABELS), (3, LABELS)])
def test_gradients_by_hand_are_those_of_autograd(outputs, targets):
    values = torch.randn(1, 3, outputs, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (expected,) = torch.autograd.grad(sample_losses(values, targets).sum(), values)
    losses, gradients = STANDARD.with_gradients(values.detach(), targets)
    assert torch.allclose(losses, sample_losses(values, targets), atol=1e-14)
    assert torch.allclose(gradients, expected, atol=1e-14)
    assert gradients.abs().max() > 0.1


def test_a_prediction_is_the_larger_output_or_the_sign_of_the_only_one():
    assert hits(torch.tensor([[[1.0, 2.0], [1.0, 2.0], [3.0, 2.0]]]), LABELS).tolist() == [[True, False, False]]
    assert hits(torch.tensor([[[0.3], [-0.1], [-2.0]]]), LABELS).tolist() == [[True, True, False]]
    assert not hits(NUMBERS[..., None], NUMBERS).any()
