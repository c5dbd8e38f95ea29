"""The steps of one phase at some clients at once; here by autograd, for every network and every direction."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pfl_lightning.client.losses import sample_losses
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.sgd import Moving, sgd_step
from pfl_lightning.tree import Params, Tree

Forward = Callable[[nn.Module, Params, Tensor], Tensor]


class Epoch(NamedTuple):
    """What some clients pass over in an epoch, in the order in which they do.

    Attributes:
        inputs: Of the network, ``[clients, samples, ...]``.
        order: Which of the inputs comes when, ``[clients, samples]``; None if they are in the order of visiting.
        targets: Labels in the order of visiting, ``[clients, samples]``.
        counts: Samples of each client, ``[clients]``.
        present: 1 for a sample, 0 for padding, ``[clients, samples]``.
        weights: Weight of a sample in the mean loss of its batch, 0 for padding, ``[clients, samples]``.
    """

    inputs: Tensor
    order: Tensor | None
    targets: Tensor
    counts: Tensor
    present: Tensor
    weights: Tensor


def in_order(rows: Tensor, order: Tensor | None) -> Tensor:
    """Put the second axis of ``[clients, samples, ...]`` in an order ``[clients, samples]``, if there is one."""
    return rows if order is None else rows[torch.arange(len(rows), device=rows.device)[:, None], order]


def out_of_order(rows: Tensor, order: Tensor | None) -> Tensor:
    """Undo ``in_order``."""
    return in_order(rows, None if order is None else order.argsort(1))


class Steps(ABC):
    """Mini-batch SGD at some clients: ``enter`` and ``step`` for each epoch, then ``finish``.

    Args:
        network: What moves, and all behind it.
        start: The tensors of this network before the phase.
        rows: What moves: one uninitialised row per client, ``[clients, ...]``; they hold the result after ``finish``.
        phase: What to do.
    """

    def __init__(self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase) -> None:
        self.network, self.phase, self.params = network, phase, start.moved_to(rows)
        parameters = {name for name, _ in network.named_parameters()}
        self.moving = Moving.start({name: rows[name] for name in sorted(rows) if name in parameters}, phase)

    @property
    @abstractmethod
    def kind(self) -> str:
        """How they are computed, in words."""

    @abstractmethod
    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch."""

    @abstractmethod
    def step(self, clients: int, batch: slice) -> Tensor:
        """One step of SGD; an epoch's batches come in order, all of one size but the last.

        Args:
            clients: How many clients take it, from the first on.
            batch: The samples of the epoch that it looks at.

        Returns:
            Sum of the losses of each client's samples before the step, ``[clients]``.
        """

    @abstractmethod
    def finish(self) -> None:
        """End the phase."""


class AutogradSteps(Steps):
    """Steps by autograd, for every network and every direction.

    Args:
        forward: Outputs of a network at every client.
        arguments: See ``Steps``.
    """

    def __init__(self, forward: Forward, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.forward = forward

    @property
    def kind(self) -> str:
        """How they are computed."""
        return "by autograd"

    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch."""
        self.epoch, self.inputs = epoch, in_order(epoch.inputs, epoch.order)

    def step(self, clients: int, batch: slice) -> Tensor:
        """One step of SGD."""
        params, moving, epoch = self.params.rows(0, clients), self.moving.rows(clients), self.epoch
        inputs, targets = self.inputs[:clients, batch], epoch.targets[:clients, batch]
        present, weights = epoch.present[:clients, batch], epoch.weights[:clients, batch]

        def gradient(tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tree]:
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
            outputs = self.forward(self.network, Params(params.shared, {**params.own, **leaves}), inputs)
            losses = sample_losses(outputs, targets)
            grads = torch.autograd.grad((losses * weights).sum(), list(leaves.values()))
            return losses.detach(), dict(zip(leaves, grads, strict=True))

        losses, grads = gradient(moving.tensors)
        if self.phase.direction is not None:
            grads = self.phase.direction(moving.tensors, grads, lambda tensors: gradient(tensors)[1])
        sgd_step(moving, grads, self.phase)
        return (losses * present).sum(1)

    def finish(self) -> None:
        """End the phase; everything is in its rows already."""


def batch_weights(present: Tensor, batch_size: int) -> Tensor:
    """Weight of each sample in the mean of its batch, ``[clients, samples]``, given which are present."""
    batches = [batch / batch.sum(1, keepdim=True).clamp_(min=1) for batch in present.split(batch_size, dim=1)]
    return torch.cat(batches, dim=1)
