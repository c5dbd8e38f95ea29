"""Many clients at once through a stack of linear layers, with a backward pass written by hand.

Applies where all layers from the first one that moves are ``Flatten``, ``Linear`` and ``ReLU``. A weight's gradient is
never stored: one ``baddbmm`` adds it to the momentum, or to the weight itself.
"""

import torch
from torch import Tensor, nn

from pfl_lightning.client.backend import Batch
from pfl_lightning.client.batched import Batched
from pfl_lightning.client.losses import losses_and_gradients
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.sgd import Moving, decay_of
from pfl_lightning.tree import Params


class LinearStack(Batched):
    """Many clients at once, for stacks of linear layers."""

    @staticmethod
    def suits(network: nn.Module) -> bool:
        """Whether the network is such a stack."""
        layers = list(network.children())
        return any(isinstance(layer, nn.Linear) for layer in layers) and all(
            type(layer) in (nn.Flatten, nn.Linear, nn.ReLU) for layer in layers
        )

    @torch.no_grad()
    def step(self, network: nn.Module, params: Params, moving: Moving, batch: Batch, phase: Phase) -> Tensor:
        """One step of SGD at every client, in place."""
        if phase.direction is not None:
            with torch.enable_grad():
                return super().step(network, params, moving, batch, phase)
        tensors = {**params.shared, **params.own}
        hidden, (_, targets, present) = batch.inputs, batch
        entered: dict[str, Tensor] = {}  # what each layer received
        for name, layer in network.named_children():
            entered[name] = hidden
            hidden = _forward(layer, hidden, tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias"))
        losses, grad = losses_and_gradients(hidden, targets)
        grad *= (present / present.sum(1, keepdim=True))[..., None]
        self._backward(network, tensors, entered, moving, grad, phase)
        return (losses * present).sum(1)

    def _backward(
        self,
        network: nn.Module,
        tensors: dict[str, Tensor],
        entered: dict[str, Tensor],
        moving: Moving,
        grad: Tensor,
        phase: Phase,
    ) -> None:
        """Carry ``d loss / d output``, ``[clients, batch, outputs]``, down to the first layer that moves."""
        moved = [name for name in entered if f"{name}.weight" in moving.tensors or f"{name}.bias" in moving.tensors]
        layers = [(name, layer) for name, layer in network.named_children() if not isinstance(layer, nn.Flatten)]
        for name, layer in reversed(layers):
            received = entered[name]
            if isinstance(layer, nn.ReLU):
                grad = grad * (received > 0)
                continue
            below = grad @ tensors[f"{name}.weight"] if name != moved[0] else grad  # before the weight moves
            if f"{name}.weight" in moving.tensors:
                _move_weight(moving, f"{name}.weight", received.flatten(2), grad, phase)
            if f"{name}.bias" in moving.tensors:
                _move_bias(moving, f"{name}.bias", grad.sum(1), phase)
            if name == moved[0]:
                return
            grad = below


def _forward(layer: nn.Module, hidden: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """One layer at every client; the weight is ``[outputs, inputs]`` or ``[clients, outputs, inputs]``."""
    if isinstance(layer, nn.Flatten):
        return hidden.flatten(2)
    if weight is None:
        return hidden.relu()
    outputs = hidden @ weight.mT
    return outputs if bias is None else outputs.add_(bias.unsqueeze(-2))


def _move_weight(moving: Moving, name: str, received: Tensor, grad: Tensor, phase: Phase) -> None:
    """Step along the gradient ``grad^T received``, ``[clients, outputs, inputs]``, without storing it."""
    weight = moving.tensors[name]
    decay = decay_of(weight, phase)
    if not phase.momentum:
        weight.baddbmm_(grad.mT, received, beta=1 - phase.lr * decay, alpha=-phase.lr)
        return
    velocity = moving.velocities[name]
    velocity.baddbmm_(grad.mT, received, beta=phase.momentum)
    if decay:
        velocity.add_(weight, alpha=decay)
    weight.sub_(velocity, alpha=phase.lr)


def _move_bias(moving: Moving, name: str, grad: Tensor, phase: Phase) -> None:
    """Step along the gradient ``[clients, outputs]``."""
    step = moving.velocities[name].mul_(phase.momentum).add_(grad) if phase.momentum else grad
    moving.tensors[name].sub_(step, alpha=phase.lr)
