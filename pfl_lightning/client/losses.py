"""The loss, chosen by the type of the targets and the number of outputs; its gradient is always prediction - target.

Floating-point targets: half the squared error of the single output. Class labels with one output: logistic loss of the
labels 0 and 1. Class labels with several outputs: softmax cross-entropy.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def sample_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each sample.

    Args:
        outputs: ``[clients, batch, outputs]``.
        targets: Class labels, or floating-point targets of a regression, ``[clients, batch]``.

    Returns:
        Losses, ``[clients, batch]``.
    """
    if targets.is_floating_point():
        return (outputs.squeeze(-1) - targets).square() / 2
    if outputs.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets.to(outputs.dtype), reduction="none")
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def losses_and_gradients(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """``sample_losses``, and their gradients with respect to the outputs, ``[clients, batch, outputs]``, by formula."""
    if targets.is_floating_point():
        return sample_losses(outputs, targets), outputs - targets[..., None]
    if outputs.shape[-1] == 1:
        return sample_losses(outputs, targets), outputs.sigmoid() - targets[..., None]
    log_likelihood = outputs.log_softmax(-1)
    losses = -log_likelihood.gather(-1, targets[..., None])[..., 0]
    gradients = log_likelihood.exp_()
    return losses, gradients.scatter_add_(-1, targets[..., None], gradients.new_full((), -1).expand(*targets.shape, 1))


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether each prediction is correct, ``[clients, batch]``; always False for a regression."""
    if targets.is_floating_point():
        return torch.zeros_like(targets, dtype=torch.bool)
    if outputs.shape[-1] == 1:
        return (outputs.squeeze(-1) > 0) == (targets == 1)
    return outputs.argmax(-1) == targets
