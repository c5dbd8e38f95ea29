"""One linear layer, with the ReLU, the dropout and the pooling after it, for all clients of a tile."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.client.epochs import Epoch, in_order
from pfl_lightning.client.layers import dropout_noise
from pfl_lightning.client.optimizers import Moving, adam_step, take_step
from pfl_lightning.client.penalties import Slope
from pfl_lightning.client.phase import Phase
from pfl_lightning.tree import Params, Tree

NO_SLOPE = Slope()


class After(NamedTuple):
    """What follows a linear layer.

    Attributes:
        relu: Whether a ReLU does.
        dropout: The probability of dropping an output.
        stream: Name of the streams that tell which.
        pool: Width to which the outputs are then pooled by averaging; None for no pooling.
    """

    relu: bool = False
    dropout: float = 0.0
    stream: str = ""
    pool: int | tuple[int] | None = None


class LinearLayer:
    """A linear layer; its weight and bias may be shared or each client's own, trained or not.

    Args:
        name: The layer's name.
        phase: The phase to run.
        after: What follows it.

    Attributes:
        weight: ``[outputs, inputs]`` or ``[clients, outputs, inputs]``, for the clients of the current step.
        bias: ``[outputs]`` or ``[clients, outputs]``; None if the layer has none.
        moving: The trained parameters and what their optimizer keeps of them.
        inputs: Inputs of the layer in this step, ``[clients, batch, inputs]``.
        outputs: Outputs in this step, after the ReLU and dropout, ``[clients, batch, outputs]``.
        noise: What dropout has multiplied them with, ``[clients, batch, outputs]``, if there is dropout.
    """

    weight: Tensor
    bias: Tensor | None
    moving: Moving
    inputs: Tensor
    outputs: Tensor
    noise: Tensor

    def __init__(self, name: str, phase: Phase, after: After) -> None:
        self.weight_name = f"{name}.weight"
        self.bias_name = f"{name}.bias"
        self.phase = phase
        self.after = after

    def attach(self, params: Params, moving: Moving) -> None:
        """Use these tensors in the following steps."""
        tensors = params.tree
        self.moving = moving
        self.weight = tensors[self.weight_name]
        self.bias = tensors.get(self.bias_name)
        self.streams = tensors.get(self.after.stream)

    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch; only called for the first layer of a stack."""
        self.epoch_inputs = in_order(epoch.inputs, epoch.order).flatten(2)

    def read(self, clients: int, batch: slice) -> Tensor:
        """Outputs for a batch of the epoch; only called for the first layer of a stack."""
        return self.forward(self.epoch_inputs[:clients, batch])

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs ``[clients, batch, outputs]`` for the outputs of the previous layer."""
        self.inputs = inputs
        return self.activated(inputs @ self.weight.mT)

    def activated(self, outputs: Tensor) -> Tensor:
        """Add the bias, and apply ReLU and dropout, in place; then pool."""
        if self.bias is not None:
            outputs.add_(self.bias.unsqueeze(-2))
        self.outputs = outputs.relu_() if self.after.relu else outputs
        if self.streams is not None:
            self.noise = dropout_noise(self.streams, outputs, self.after.dropout)
            outputs.mul_(self.noise)
        return self.outputs if self.after.pool is None else F.adaptive_avg_pool1d(self.outputs, self.after.pool)

    def backward(self, grad: Tensor, penalty: Mapping[str, Slope]) -> Tensor:
        """Propagate the gradient to the inputs, and update the layer.

        Args:
            grad: ``d loss / d outputs``, ``[clients, batch, outputs]``.
            penalty: Gradient of the penalty by name.

        Returns:
            ``d loss / d inputs``, ``[clients, batch, inputs]``, with the weight before the update.
        """
        grad = self.before_activation(grad)
        handed = grad @ self.weight
        self.move(grad, penalty)
        return handed

    def before_activation(self, grad: Tensor) -> Tensor:
        """Propagate a gradient of the outputs back through pooling, dropout and ReLU, if there are."""
        if self.after.pool is not None:  # as for images of height 1, [clients, batch, 1, outputs]
            rows = grad.unsqueeze(-2), self.outputs.unsqueeze(-2)
            grad = torch.ops.aten._adaptive_avg_pool2d_backward(*rows).squeeze(-2)
        if self.streams is not None:
            grad = grad * self.noise
        return torch.ops.aten.threshold_backward(grad, self.outputs, 0) if self.after.relu else grad

    def gradients(self, grad: Tensor) -> Tree:
        """Gradients of weight and bias, if trained, by name, given that of the outputs before what follows."""
        gradients = {}
        if self.weight_name in self.phase.trainable:
            gradients[self.weight_name] = grad.mT @ self.inputs
        if self.bias_name in self.phase.trainable:
            gradients[self.bias_name] = grad.sum(1)
        return gradients

    def move(self, grad: Tensor, penalty: Mapping[str, Slope]) -> None:
        """Update weight and bias, if trained, with the gradient ``[clients, batch, outputs]`` before what follows."""
        if self.weight_name in self.phase.trainable:
            self.move_weight(grad, penalty.get(self.weight_name, NO_SLOPE))
        if self.bias is not None and self.bias_name in self.phase.trainable:
            slope = penalty.get(self.bias_name, NO_SLOPE).added_to(grad.sum(1), self.bias)
            take_step(self.moving, {self.bias_name: slope}, self.phase)

    def move_weight(self, grad: Tensor, penalty: Slope) -> None:
        """Update the weight with the gradient ``grad^T inputs + penalty``; SGD does not store the product."""
        phase = self.phase
        weight = self.weight
        velocity = self.moving.velocities.get(self.weight_name)
        if phase.optimizer != "SGD":
            adam_step(self.moving, self.weight_name, penalty.added_to(grad.mT @ self.inputs, weight), phase)
            return
        decay = phase.weight_decay + penalty.of_parameter
        if velocity is None:
            weight.baddbmm_(grad.mT, self.inputs, beta=1 - phase.lr * decay, alpha=-phase.lr)
            for scale, tensor in penalty.terms:
                weight.sub_(tensor, alpha=phase.lr * scale)
            return
        velocity.baddbmm_(grad.mT, self.inputs, beta=phase.momentum)
        if decay:
            velocity.add_(weight, alpha=decay)
        for scale, tensor in penalty.terms:
            velocity.add_(tensor, alpha=scale)
        weight.sub_(velocity, alpha=phase.lr)

    def finish(self) -> None:
        """Write the weight into its rows; nothing to do here, where it is updated in place."""
