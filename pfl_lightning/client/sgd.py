"""The local optimizer, on stacks of plain tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pfl_lightning.client.phase import Phase
from pfl_lightning.tree import Tree


@dataclass
class Moving:
    """What a phase moves, and its momentum; one row per client, ``[clients, ...]``.

    Attributes:
        tensors: The stacks that move, in place.
        velocities: Their momentum buffers; empty without momentum.
    """

    tensors: Tree
    velocities: Tree

    @classmethod
    def start(cls, names: Iterable[str], own: Mapping[str, Tensor], phase: Phase) -> "Moving":
        """Begin a phase at rest."""
        tensors = {name: own[name] for name in names}
        return cls(tensors, {name: torch.zeros_like(t) for name, t in tensors.items()} if phase.momentum else {})

    def rows(self, clients: int) -> "Moving":
        """Views of the first clients."""
        views = ({name: stack[:clients] for name, stack in tree.items()} for tree in (self.tensors, self.velocities))
        return Moving(*views)


def decay_of(stack: Tensor, phase: Phase) -> float:
    """Weight decay of a stack: weights are ``[clients, outputs, ...]``; biases, ``[clients, outputs]``, are spared."""
    return phase.weight_decay if stack.ndim > 2 else 0.0


@torch.no_grad()
def sgd_step(moving: Moving, grads: Mapping[str, Tensor], phase: Phase) -> None:
    """One step of SGD with momentum and weight decay in place, as ``torch.optim.SGD`` does it."""
    for name, tensor in moving.tensors.items():
        step = grads[name]
        if decay := decay_of(tensor, phase):
            step = step.add(tensor, alpha=decay)
        if phase.momentum:
            step = moving.velocities[name].mul_(phase.momentum).add_(step)
        tensor.sub_(step, alpha=phase.lr)
