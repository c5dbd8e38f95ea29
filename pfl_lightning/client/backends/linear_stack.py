"""Many clients at once for stacks of linear layers, with a hand-written backward pass.

Applies if all layers from the first trained one on are ``Linear`` and ``ReLU`` (after an optional ``Flatten``), and the
phase has no ``gradient_transform``, ``grad_tolerance`` or ``clip_norm``, and there is no mixed precision.
"""

import torch
from torch import nn

from pfl_lightning.client.backends.batched import Batched
from pfl_lightning.client.linear import LinearSteps
from pfl_lightning.client.losses import Loss
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.steps import Steps
from pfl_lightning.tree import Params, Tree


class LinearStack(Batched):
    """Many clients at once, for stacks of linear layers."""

    @staticmethod
    def suits(network: nn.Module) -> bool:
        """Whether the network is such a stack."""
        layers = list(network.children())
        if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
            del layers[0]
        kinds = [type(layer) for layer in layers]
        return kinds[:1] == [nn.Linear] and set(kinds) <= {nn.Linear, nn.ReLU}

    def steps(self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, loss: Loss, samples: int) -> Steps:
        """The steps of a phase; by autograd if they need each client's full gradient or mixed precision."""
        device = next(iter(rows.values())).device.type
        mixed_precision = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        if mixed_precision or any(
            rule is not None for rule in (phase.gradient_transform, phase.grad_tolerance, phase.clip_norm)
        ):
            return super().steps(network, start, rows, phase, loss, samples)
        return LinearSteps(network, start, rows, phase, loss, samples)
