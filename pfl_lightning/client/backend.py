from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pfl_lightning.client.losses import sample_losses
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.sgd import Moving, sgd_step
from pfl_lightning.tree import Params, Tree

ClientFunction = Callable[..., Tree]


class Batch(NamedTuple):
    """One batch per client.

    Attributes:
        inputs: ``[clients, batch, ...]``.
        targets: Labels, ``[clients, batch]``.
        present: 1 for a sample, 0 for padding, ``[clients, batch]``.
    """

    inputs: Tensor
    targets: Tensor
    present: Tensor


class Backend(ABC):
    """How one computation is carried out for many clients. All backends give the same numbers."""

    @abstractmethod
    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """Map a pure function of one client's tensors over the clients; see ``Engine.each``."""

    @abstractmethod
    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """Outputs of a network at every client.

        Args:
            network: What to compute; its own tensors are not used.
            params: Exactly the tensors of this network.
            inputs: ``[clients, batch, ...]``.

        Returns:
            Outputs, ``[clients, batch, ...]``.
        """

    @abstractmethod
    def tile_size(self, moving: list[Tensor]) -> int:
        """How many clients train at once, given the stacks that move, ``[clients, ...]`` each."""

    def step(self, network: nn.Module, params: Params, moving: Moving, batch: Batch, phase: Phase) -> Tensor:
        """One step of SGD at every client, in place; here by autograd.

        Args:
            network: What moves, and all behind it.
            params: Exactly the tensors of this network.
            moving: Those of them that move.
            batch: The samples of each client.
            phase: The rates.

        Returns:
            Sum of the losses of each client's samples before the step, ``[clients]``.
        """

        def gradient(tensors: Tree) -> Tree:
            return self._gradient(network, params, tensors, batch)[1]

        losses, grads = self._gradient(network, params, moving.tensors, batch)
        if phase.direction is not None:
            grads = phase.direction(moving.tensors, grads, gradient)
        sgd_step(moving, grads, phase)
        return losses

    def _gradient(self, network: nn.Module, params: Params, tensors: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        """Sum of the losses of each client's samples, ``[clients]``, and the gradients of their means."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
        outputs = self.forward(network, Params(params.shared, {**params.own, **leaves}), batch.inputs)
        losses = (sample_losses(outputs, batch.targets) * batch.present).sum(1)
        grads = torch.autograd.grad((losses / batch.present.sum(1)).sum(), list(leaves.values()))
        return losses.detach(), dict(zip(leaves, grads, strict=True))
