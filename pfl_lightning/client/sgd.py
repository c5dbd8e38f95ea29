"""The local optimizer, on plain tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pfl_lightning.client.phase import Phase


@torch.no_grad()
def sgd_step(
    phase: Phase, decayed: Sequence[bool], tensors: list[Tensor], grads: Sequence[Tensor], velocities: list[Tensor]
) -> None:
    """One step of SGD with momentum and weight decay in place, as ``torch.optim.SGD`` does it.

    Args:
        phase: The rates.
        decayed: Whether weight decay acts, for each tensor.
        tensors: What moves; any leading axes.
        grads: Gradients of the same shapes.
        velocities: Momentum buffers of the same shapes.
    """
    for decays, tensor, grad, velocity in zip(decayed, tensors, grads, velocities, strict=True):
        if decays and phase.weight_decay:
            grad = grad.add(tensor, alpha=phase.weight_decay)
        if phase.momentum:
            grad = velocity.mul_(phase.momentum).add_(grad)
        tensor.sub_(grad, alpha=phase.lr)
