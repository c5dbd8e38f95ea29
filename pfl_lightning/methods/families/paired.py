from abc import abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from pfl_lightning.client import Examples
from pfl_lightning.client.layers import layers_before, layers_without_vmap, part
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import Architectures, Network, NetworkFactory
from pfl_lightning.models.network import Head
from pfl_lightning.seeding import Key, seed_of
from pfl_lightning.tree import Params, Tree, movable


class Paired(Averaging):
    """Clients keep a model of their own, and share a small one, which trains on the same mini-batches.

    Args:
        shared_network: Network of the shared model. Default: the smallest of the clients' networks.
        kwargs: Options of the bases.
    """

    keeps = "*.private.*"
    private_head = "heads.private"  # prefix of the client's own head
    eval_models = ("stored",)
    needs = ("classes", "features")

    def __init__(self, shared_network: NetworkFactory | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shared_network = shared_network

    def complete_networks(self, networks: Architectures, seed: int) -> None:
        """Put the shared network beside each network."""
        factory = self.shared_network or self.make_network
        key = "model.shared_network" if self.shared_network else "model.network"
        extend = None if self.shared_network else self._extend
        made = self._start(factory, seed=seed_of(seed, "shared network"), extend=extend)
        smallest = min(made, key=lambda network: sum(parameter.numel() for parameter in network.parameters()))
        for place, network in enumerate(networks):
            shared = Side(cast(Network, deepcopy(smallest)), 1, key)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_of(seed, "heads"))  # of what a method adds to them
                networks[place] = Pair(Side(cast(Network, network), self.head), shared, self.heads_of)

    def heads_of(self, private: "Side", shared: "Side") -> nn.Module:
        """The layer that turns features of both networks, ``[batch, private + shared]``, into outputs of both."""
        return SideBySide(private.head, shared.head, (private.width, shared.width))

    @abstractmethod
    def paired_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``, by outputs of both; see ``Phase.feature_loss``."""

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train both models."""
        phase = replace(self.phase("all"), feature_loss=self.paired_losses)
        return self.engine.train(cohort, received, phase, (*key, "all"))

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The tensors of both models, and those of the client's own one also under their names in its network."""
        body, head = (received.under(prefix) for prefix in ("bodies.private", self.private_head))
        return received.select(self.parts["all"]).with_own({**body.own, **head.own})

    def eval_network(self, model: str, params: Params) -> Network:
        """The network of the client's own model."""
        return self.newcomer_network

    @property
    def newcomer_network(self) -> Network:
        """The network of a client's own model."""
        return cast(Pair, self.network).private

    def common_body(self) -> Tree:
        """The mean of the clients' own bodies."""
        names = [name for name in self.clients.names if name.startswith("bodies.private.")]
        return {name.removeprefix("bodies.private."): mean for name, mean in self.clients.mean(names).items()}


class Side:
    """One of two networks that are to be joined.

    Args:
        network: The network.
        head: Its head; see ``Network.cut``.
        key: The option of the network.

    Attributes:
        body: The layers before the head.
        head: The other layers.
        width: Number of features.
    """

    def __init__(self, network: Network, head: Head, key: str = "model.network") -> None:
        names = network.cut(head)[1]
        layers = layers_before(network, names, key)
        self.network = network
        self.body = part(network, 0, layers)
        self.head = part(network, layers)
        self.width = cast(nn.Linear, network.get_submodule(network.linear_head(names))).in_features


class SideBySide(nn.Module):
    """Layers of two networks, whose outputs are put side by side, ``[batch, private + shared]``.

    Args:
        private: Layers of the one.
        shared: Layers of the other.
        widths: Numbers of inputs of both, which come side by side, too. Default: both have the same inputs.
    """

    def __init__(self, private: nn.Module, shared: nn.Module, widths: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.private = private
        self.shared = shared
        self.widths = widths

    def forward(self, inputs: Tensor) -> Tensor:
        """Run both."""
        first, second = inputs.split(self.widths, 1) if self.widths else (inputs, inputs)
        return torch.cat([self.private(first).flatten(1), self.shared(second).flatten(1)], 1)


class Pair(Network):
    """Two networks in one, as two layers: the bodies, and the heads.

    Args:
        private: The network of a client.
        shared: The one that all clients share.
        make_heads: Makes the layer of the heads; its tensors that are kept have ``private`` in their names.
    """

    def __init__(self, private: Side, shared: Side, make_heads: Callable[[Side, Side], nn.Module]) -> None:
        bodies = SideBySide(private.body, shared.body)
        heads = make_heads(private, shared)
        super().__init__({"bodies": bodies, "heads": heads})
        self.takes = private.network.takes
        self._private = (private.network,)  # in a tuple, so that its layers have one name each
        for layer, parts in ((bodies, (private.body, shared.body)), (heads, (private.head, shared.head))):
            vars(layer)["without_vmap"] = any(map(layers_without_vmap, parts))

    def cut(self, head: Head) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the tensors of the bodies and of the heads."""
        names = frozenset(movable(self))
        heads = frozenset(name for name in names if name.startswith("heads."))
        return names - heads, heads

    @property
    def private(self) -> Network:
        """The network of a client by itself."""
        return self._private[0]

    @property
    def kind(self) -> str:
        """Name of the class of the client's network."""
        return self.private.kind
