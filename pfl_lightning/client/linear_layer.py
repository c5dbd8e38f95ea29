"""One linear layer, with the ReLU behind it, at every client of a tile: products and updates written by hand."""

import torch
from torch import Tensor

from pfl_lightning.client.phase import Phase
from pfl_lightning.client.sgd import Moving
from pfl_lightning.client.steps import Epoch, in_order
from pfl_lightning.tree import Params


class LinearLayer:
    """A linear layer whose weight and bias are shared or each client's own, and may move.

    Args:
        name: The layer's name.
        phase: What to do.
        relu: Whether a ReLU follows.
    """

    def __init__(self, name: str, phase: Phase, relu: bool) -> None:
        self.names, self.phase, self.relu = (f"{name}.weight", f"{name}.bias"), phase, relu

    def attach(self, params: Params, moving: Moving) -> None:
        """Work on these rows from here on."""
        tensors, (weight, bias) = {**params.shared, **params.own}, self.names
        self.weight, self.bias = tensors[weight], tensors.get(bias)
        self.velocities = [moving.velocities.get(name) for name in self.names]

    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch; for the first layer of a stack."""
        self.inputs = in_order(epoch.inputs, epoch.order).flatten(2)

    def first(self, clients: int, batch: slice) -> Tensor:
        """Outputs for a batch of the epoch."""
        return self.forward(self.inputs[:clients, batch])

    def forward(self, received: Tensor) -> Tensor:
        """Outputs ``[clients, batch, outputs]`` for what the layer below hands over."""
        self.received = received
        return self.activated(received @ self.weight.mT)

    def activated(self, outputs: Tensor) -> Tensor:
        """Add the bias and apply ReLU, in place."""
        if self.bias is not None:
            outputs.add_(self.bias.unsqueeze(-2))
        self.outputs = outputs.relu_() if self.relu else outputs
        return self.outputs

    def backward(self, grad: Tensor) -> Tensor:
        """Move along the gradient.

        Args:
            grad: ``d loss / d outputs``, ``[clients, batch, outputs]``.

        Returns:
            ``d loss / d inputs``, ``[clients, batch, inputs]``, at the weight before it moved.
        """
        grad = self.before_relu(grad)
        handed = grad @ self.weight
        self.move(grad)
        return handed

    def before_relu(self, grad: Tensor) -> Tensor:
        """Carry a gradient of the outputs through the ReLU, if there is one."""
        return torch.ops.aten.threshold_backward(grad, self.outputs, 0) if self.relu else grad

    def move(self, grad: Tensor) -> None:
        """Move weight and bias, those that move, along a gradient ``[clients, batch, outputs]`` before the ReLU."""
        weight, bias = self.names
        if weight in self.phase.moves:
            self.move_weight(grad)
        if self.bias is not None and bias in self.phase.moves:
            self._move_bias(self.bias, grad.sum(1))

    def move_weight(self, grad: Tensor) -> None:
        """Move the weight along ``grad^T received`` without storing that."""
        phase, weight, velocity = self.phase, self.weight, self.velocities[0]
        if velocity is None:
            weight.baddbmm_(grad.mT, self.received, beta=1 - phase.lr * phase.weight_decay, alpha=-phase.lr)
            return
        velocity.baddbmm_(grad.mT, self.received, beta=phase.momentum)
        if phase.weight_decay:
            velocity.add_(weight, alpha=phase.weight_decay)
        weight.sub_(velocity, alpha=phase.lr)

    def _move_bias(self, bias: Tensor, step: Tensor) -> None:
        """Move the bias along its gradient, ``[clients, outputs]``."""
        velocity = self.velocities[1]
        if velocity is not None:
            step = torch.add(step, velocity, alpha=self.phase.momentum, out=velocity)
        bias.sub_(step, alpha=self.phase.lr)

    def finish(self) -> None:
        """Write the weight into its rows, if it is not there."""
