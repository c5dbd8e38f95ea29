"""Backends, which run the same computation for many clients: one at a time, or many at once."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from pfl_lightning.client.layers import StreamDropout, channels_last, part
from pfl_lightning.client.linear import LinearGradients, LinearSteps
from pfl_lightning.client.losses import Loss
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.steps import AutogradSteps, FeatureSteps, Steps
from pfl_lightning.tree import Params, Tree, movable

ClientFunction = Callable[..., Tree]

TILE_BYTES = 24 << 20  # trained parameters of a tile on a CPU; more would not stay in its cache between steps


class Backend(ABC):
    """Runs a computation for many clients. All backends give the same results up to rounding.

    Attributes:
        name: Name of the backend on the command line.
    """

    name: ClassVar[str]

    @abstractmethod
    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """Map a pure function of one client's tensors over the clients; see ``Engine.each``."""

    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """Outputs of a network for every client.

        Args:
            network: The network; of its own tensors the frozen ones are used.
            params: Exactly the other tensors of this network.
            inputs: ``[clients, batch, ...]``.

        Returns:
            Outputs, ``[clients, batch, ...]``.
        """

        def client(tensors: Tree, batch: Tensor) -> Tree:
            return {"": functional_call(network, tensors, batch)}

        return self.each(client, params, channels_last(inputs, 2))[""]

    @abstractmethod
    def tile_size(self, moving: list[Tensor]) -> int:
        """Number of clients to train at once, given the trained stacks, ``[clients, ...]`` each."""

    def steps(
        self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, loss: Loss, samples: int, body: int = 0
    ) -> Steps:
        """The SGD steps of a phase for some clients.

        Args:
            network: See ``Steps``.
            start: See ``Steps``.
            rows: See ``Steps``.
            phase: The phase to run.
            loss: The loss.
            samples: Number of inputs of the largest client if inputs stay the same during the whole phase; otherwise 0.
            body: Number of layers before the features, for a phase with a ``feature_loss``.
        """
        if phase.feature_loss is not None:
            return FeatureSteps(self.each, body, network, start, rows, phase, loss)
        return AutogradSteps(self.forward, network, start, rows, phase, loss)


class Sequential(Backend):
    """The reference: one client at a time, without padding; runs every network."""

    name = "sequential"

    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """Call the function once per client."""
        clients = len(next(iter([*params.own.values(), *arguments])))
        results = [function(params.client(row), *(argument[row] for argument in arguments)) for row in range(clients)]
        return {name: torch.stack([result[name] for result in results]) for name in results[0]}

    def tile_size(self, moving: list[Tensor]) -> int:
        """One client."""
        return 1


class Batched(Backend):
    """Many clients at once with ``vmap``; on a CPU in tiles that fit in the cache.

    Works for every network without BatchNorm, whose statistics would include the padding of clients with fewer samples.
    Random layers other than ``nn.Dropout`` depend on which clients share a tile, because a tile has one random stream.

    Args:
        chunk_size: Clients that train at once; None for as many as suit the device.
    """

    name = "batched"

    def __init__(self, chunk_size: int | None = None) -> None:
        self.chunk_size = chunk_size

    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """One vectorised call for all clients."""

        def client(tensors: Tree, *rows: Tensor) -> Tree:
            return function({**params.shared, **tensors}, *rows)

        on_cpu = all(stack.device.type == "cpu" for stack in params.own.values())
        # on a CPU, vmap would run fused attention for one client after another
        with sdpa_kernel(SDPBackend.MATH) if on_cpu else nullcontext():
            return vmap(client, in_dims=(0,) * (1 + len(arguments)), randomness="different")(params.own, *arguments)

    def tile_size(self, moving: list[Tensor]) -> int:
        """On a CPU as many clients as fit in its cache; on an accelerator all of them."""
        clients = len(moving[0])
        if self.chunk_size:
            return self.chunk_size
        if moving[0].device.type != "cpu":
            return clients
        return max(1, TILE_BYTES // max(1, sum(stack.nbytes for stack in moving) // clients))


class LinearStack(Batched):
    """Many clients at once for stacks of linear layers, with a hand-written backward pass.

    Applies if all layers from the first trained one on are ``Linear``, each perhaps with ``ReLU``, ``Dropout`` and
    ``AdaptiveAvgPool1d`` after it (and ``Flatten`` before all), with no hooks and no frozen or tied parameters, and
    there is no mixed precision.
    """

    @staticmethod
    def suits(network: nn.Module) -> bool:
        """Whether the network is such a stack."""
        layers = list(network.children())
        if layers and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
            del layers[0]
        letters = {nn.Linear: "L", nn.ReLU: "R", nn.Dropout: "D", StreamDropout: "D", nn.AdaptiveAvgPool1d: "P"}
        fits = re.fullmatch("(LR?D?P?)+", "".join(letters.get(type(layer), "-") for layer in layers)) is not None
        hooked = any(hooks for layer in layers for name, hooks in vars(layer).items() if name.endswith("_hooks"))
        return fits and not hooked and movable(network).keys() == network.state_dict().keys()

    def steps(
        self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, loss: Loss, samples: int, body: int = 0
    ) -> Steps:
        """The steps of a phase; by autograd in mixed precision, or if a loss of features meets rules for gradients."""
        device = next(iter(rows.values())).device.type
        mixed_precision = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        needs_gradient = phase.gradient_transform is not None or phase.clip_norm is not None
        before_features = sum(isinstance(layer, nn.Linear) for layer in part(network, 0, body))
        no_gradient = phase.feature_loss is not None and not before_features
        if mixed_precision or no_gradient or (needs_gradient and phase.feature_loss is not None):
            return super().steps(network, start, rows, phase, loss, samples, body)
        if needs_gradient:
            return LinearGradients(self.forward, network, start, rows, phase, loss)
        return LinearSteps(network, start, rows, phase, loss, samples, before_features)
