"""The local optimizers, on plain tensors stacked over clients: SGD, and Adam with its two kinds of weight decay."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from pfl_lightning.client.phase import Phase
from pfl_lightning.tree import Tree, wide, zeros_like

BETA_1 = 0.9  # torch's own defaults
BETA_2 = 0.999
EPSILON = 1e-8


class Moving(NamedTuple):
    """The parameters that a phase trains, and what their optimizer keeps; one row per client, ``[clients, ...]``.

    Attributes:
        tensors: The parameters; updated in place.
        velocities: Momentum buffers of SGD, empty without momentum; Adam's means of the gradients.
        squares: Adam's means of the squared gradients; empty for SGD.
        steps: Adam's number of steps of each client, ``[clients]``; empty for SGD.
    """

    tensors: Tree
    velocities: Tree
    squares: Tree
    steps: Tree

    @classmethod
    def start(cls, tensors: Tree, phase: Phase) -> "Moving":
        """Start a phase, with an optimizer that has seen nothing."""
        if phase.optimizer == "SGD":
            return cls(tensors, zeros_like(tensors) if phase.momentum else {}, {}, {})
        # float32 as in torch's own: bfloat16 cannot count beyond 256
        steps = {name: stack.new_zeros(len(stack), dtype=torch.float32) for name, stack in tensors.items()}
        return cls(tensors, zeros_like(tensors), zeros_like(tensors), steps)

    def rows(self, clients: int) -> "Moving":
        """Views of the first clients."""
        return Moving(*({name: stack[:clients] for name, stack in tree.items()} for tree in self))


@torch.no_grad()
def take_step(moving: Moving, grads: Mapping[str, Tensor], phase: Phase) -> None:
    """One in-place step of the phase's optimizer along these gradients."""
    for name, grad in grads.items():
        (sgd_step if phase.optimizer == "SGD" else adam_step)(moving, name, grad, phase)


def sgd_step(moving: Moving, name: str, grad: Tensor, phase: Phase) -> None:
    """Move a parameter by SGD with momentum and weight decay, as in ``torch.optim.SGD``."""
    tensor = moving.tensors[name]
    if decay := phase.decay_of(tensor.ndim - 1):
        grad = grad.add(tensor, alpha=decay)
    if phase.momentum:
        grad = torch.add(grad, moving.velocities[name], alpha=phase.momentum, out=moving.velocities[name])
    tensor.sub_(grad, alpha=phase.lr)


def adam_step(moving: Moving, name: str, grad: Tensor, phase: Phase) -> None:
    """Move a parameter by torch's own fused Adam or AdamW, each client's alone: ends of its vectors round otherwise."""
    stacks = moving.tensors[name], grad.contiguous(), moving.velocities[name], moving.squares[name]
    parameters, grads, means, squares = (list(stack.unbind()) for stack in stacks)
    (adamw if phase.optimizer == "AdamW" else adam)(
        parameters,
        grads,
        means,
        squares,
        max_exp_avg_sqs=[],
        state_steps=list(moving.steps[name].unbind()),
        foreach=False,
        fused=True,
        amsgrad=False,
        beta1=BETA_1,
        beta2=BETA_2,
        lr=phase.lr,
        weight_decay=phase.decay_of(grad.ndim - 1),
        eps=EPSILON,
        maximize=False,
    )


def clipped(grads: Tree, largest: float) -> Tree:
    """Clip each client's gradient to a norm of at most ``largest``, as ``torch.nn.utils.clip_grad_norm_`` does.

    Args:
        grads: Gradients, ``[clients, ...]`` each; a client's norm is over all of them.
        largest: Maximum norm.
    """
    scales = (largest / (squared_norms(grads).sqrt() + 1e-6)).clamp(max=1)
    return {name: grad * wide(scales, grad) for name, grad in grads.items()}


def squared_norms(grads: Tree) -> Tensor:
    """Each client's squared norm over all its gradients, ``[clients]``."""
    return torch.stack([grad.reshape(len(grad), -1).square().sum(1) for grad in grads.values()]).sum(0)
