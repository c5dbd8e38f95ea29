"""The local optimizer, on stacks of plain tensors."""

from collections.abc import Mapping
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
    def start(cls, tensors: Tree, phase: Phase) -> "Moving":
        """Begin a phase at rest."""
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
            step = torch.add(step, moving.velocities[name], alpha=phase.momentum, out=moving.velocities[name])
        tensor.sub_(step, alpha=phase.lr)


class Recursion:
    """SGD as a linear recursion of a weight and its velocity: what they keep, and how a gradient acts later.

    Args:
        phase: The rates.
        samples: Samples in an epoch.
        like: A tensor whose device and type the factors take.
    """

    def __init__(self, phase: Phase, samples: int, like: Tensor) -> None:
        lr, momentum, decay = phase.lr, phase.momentum, phase.weight_decay
        batch_size = min(phase.batch_size, samples)
        self.step_of = torch.arange(samples, device=like.device) // batch_size
        step = torch.tensor([[1 - lr * decay, -lr * momentum], [decay, momentum]], dtype=torch.float64)
        powers = [torch.eye(2, dtype=torch.float64)]
        for _ in range(-(-samples // batch_size)):
            powers.append(step @ powers[-1])
        answers = torch.stack(powers) @ torch.tensor([-lr, 1.0], dtype=torch.float64)
        self._scales = [power[0].tolist() for power in powers]
        self._line = answers[:-1, 0].flip(0).repeat_interleave(batch_size).to(like)
        self._powers, self._answers = torch.stack(powers).to(like), answers.to(like)

    def weight_at(self, step: int, samples: int) -> tuple[float, float, Tensor]:
        """How the weight before a step depends on the weight, the velocity and the gradients since the epoch began.

        Args:
            step: Number of the step in the epoch.
            samples: How many samples came before it.

        Returns:
            The factor of the weight, that of the velocity, and those of each sample's gradient, ``[samples]``.
        """
        return (*self._scales[step], self._line[len(self._line) - samples :])

    def after(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """How weight and velocity after an epoch depend on it, at clients that took so many steps, ``[clients]``.

        Returns:
            The factors of weight and velocity, ``[clients, 2, 2]``, and those of each sample's gradient,
            ``[clients, samples, 2]``.
        """
        since = steps[:, None] - 1 - self.step_of
        return self._powers[steps], self._answers[since.clamp(min=0)] * (since >= 0)[..., None]
