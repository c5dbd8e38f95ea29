"""Many clients at once through a stack of linear layers, with a backward pass written by hand.

Applies where all layers from the first one that moves are ``Linear`` and ``ReLU`` (behind one ``Flatten``), a step
follows the gradient of its batch, and numbers have one type (no mixed precision).
"""

import torch
from torch import Tensor, nn

from pfl_lightning.client.batched import Batched
from pfl_lightning.client.dual_layer import DualLayer
from pfl_lightning.client.linear_layer import LinearLayer
from pfl_lightning.client.losses import losses_and_gradients
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.steps import Epoch, Steps
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

    def steps(self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, samples: int) -> Steps:
        """The steps of a phase, by hand unless they follow a direction of their own."""
        device = next(iter(rows.values())).device.type
        mixed_precision = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        if phase.direction is not None or mixed_precision:
            return super().steps(network, start, rows, phase, samples)
        return LinearSteps(network, start, rows, phase, samples)


class LinearSteps(Steps):
    """Steps through a stack of linear layers.

    Args:
        network: The stack.
        start: The tensors of this network before the phase.
        rows: What moves, uninitialised, ``[clients, ...]``.
        phase: What to do.
        samples: See ``Backend.steps``.
    """

    def __init__(self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, samples: int) -> None:
        relus = _linear_layers(network)
        self.layers = [LinearLayer(name, phase, relu) for name, relu in relus.items()]
        first = next(iter(relus))
        weight = f"{first}.weight"
        if weight in rows and DualLayer.pays(samples, rows[weight], phase):
            before = start.own[weight] if weight in start.own else start.shared[weight]
            self.layers[0] = DualLayer(first, phase, relus[first], before, rows[weight])
            rows = {name: row for name, row in rows.items() if name != weight}
        super().__init__(network, start, rows, phase)
        self.clients = 0

    @property
    def kind(self) -> str:
        """How they are computed."""
        return "by hand" + (", the first layer in dual form" if isinstance(self.layers[0], DualLayer) else "")

    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch."""
        self.epoch = epoch
        self.layers[0].enter(epoch)

    @torch.no_grad()
    def step(self, clients: int, batch: slice) -> Tensor:
        """One step of SGD."""
        self._attach(clients)
        first, *others = self.layers
        hidden = first.first(clients, batch)
        for layer in others:
            hidden = layer.forward(hidden)
        losses, grad = losses_and_gradients(hidden, self.epoch.targets[:clients, batch])
        grad *= self.epoch.weights[:clients, batch, None]
        for layer in reversed(others):
            grad = layer.backward(grad)
        first.move(first.before_relu(grad))  # nobody needs the gradient of its inputs
        return (losses * self.epoch.present[:clients, batch]).sum(1)

    def finish(self) -> None:
        """End the phase."""
        self.layers[0].finish()

    def _attach(self, clients: int) -> None:
        """Let the layers work on the first clients only."""
        if clients != self.clients:
            params, moving, self.clients = self.params.rows(0, clients), self.moving.rows(clients), clients
            for layer in self.layers:
                layer.attach(params, moving)


def _linear_layers(network: nn.Sequential) -> dict[str, bool]:
    """The names of the linear layers, and whether a ReLU follows."""
    relus: dict[str, bool] = {}
    for name, layer in network.named_children():
        if isinstance(layer, nn.Linear):
            relus[name], last = False, name
        elif isinstance(layer, nn.ReLU):
            relus[last] = True
    return relus
