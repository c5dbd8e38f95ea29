from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.client import Examples, join_outputs
from pfl_lightning.client.backends import Batched, Sequential
from pfl_lightning.client.layers import layers_without_vmap, part
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.models import LoRA, Network, adapted_layers
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select

ADAPTERS = "*lora_*"
BLEND = "blend"  # the only layer of the network that mixes the adapters


class FedDPA(Averaging):
    """FedIT, plus adapters of each client's own, which count for a sample as much as it is like those of the client.

    Rule of a round; W are the frozen weights, to which adapters of low rank add G, or L_i at client i:

        G_i = local optimizer for epochs on f_i(W + G_i), from G
        L_i = local optimizer for personal_epochs on f_i(W + (1 - share) G + L_i), from L_i
        keep L_i
        G   = G - server_lr * (G - sum_i weight_i * G_i)

    The head trains and is averaged with G, and stays as received in the second line. Clients are evaluated with W + G
    (``global``), which is FedIT, and for each sample x with a mix (``personal``); z are features by W + L_i:

        c = mean of cos(z(x), z(s)) over client i's training samples s
        outputs = f(x) by W + (1 - share * c) G + c L_i

    Paper: Yang, Long, Shen, Jiang, Blumenstein, Dual-Personalizing Adapter for Federated Foundation Models,
    NeurIPS 2024, arXiv:2403.19211, with what it trains in every round (FedDPA-T).

    Differs: the authors' code trains L_i from the second round on; here it is from the first one on. That code
    multiplies L_i by ``share`` too, as if ``alpha`` were smaller for these adapters. Its c
    is the mean over 5 random samples, with the last token's features; ours are the inputs of the head.

    Args:
        share: Share of the global adapters that a client's own ones replace; 0.5 in the authors' code.
        personal_epochs: Epochs on the client's own adapters per round.
        kwargs: Options of the bases; the default ``adapter`` is ``LoRA`` with its own defaults.
    """

    needs = ("features",)
    eval_models = ("personal", "global")

    def __init__(self, share: ClosedUnitInterval = 0.5, personal_epochs: PositiveInt = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.share = share
        self.personal_epochs = personal_epochs
        self.adapter = self.adapter or LoRA()
        self.strength = self.adapter.scale

    @property
    def layers(self) -> list[str]:
        """Paths of the layers that are adapted."""
        return adapted_layers(self.parts["all"])

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The clients' own adapters (``personal.*``)."""
        personal = prefixed("personal", select(tensors, self.parts[ADAPTERS]))
        return {**super().initial_state(tensors, num_clients, seed), **repeated(personal, num_clients)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the shared adapters and the head, and then the client's own adapters."""
        trained, losses = super().local_update(cohort, received, key)
        personal = with_own_adapters(received)
        start = Params(
            {**personal.shared, **self.base(received.shared)},
            {**personal.own, **self.base(received.own)},
        )
        phase = self.phase(ADAPTERS, self.personal_epochs)
        personal, _ = self.engine.train(cohort, start, phase, (*key, "personal"))
        return trained.beside("personal", personal.select(self.parts[ADAPTERS])), losses

    def base(self, received: Tree) -> Tree:
        """W + (1 - share) G, of the adapters among the received tensors."""
        w = {**self.network.state_dict(), **received}
        scale = (1 - self.share) * self.strength
        layers = [path for path in self.layers if f"{path}.lora_B" in received]
        return {f"{n}.weight": w[f"{n}.weight"] + scale * w[f"{n}.lora_B"] @ w[f"{n}.lora_A"] for n in layers}

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The global model; to mix it, beside it the client's own body and what its samples are like (``blend.*``)."""
        if model == "global":
            return received
        personal = with_own_adapters(received)
        features = join_outputs(self.engine.features(train, personal), len(train))
        directions = F.normalize(features.flatten(2), dim=2) * train.present[..., None]
        likeness = directions.sum(1) / train.device_counts.clamp(min=1)[:, None]
        blend = received.beside(f"{BLEND}.shared", received.select(self.parts["all"]))
        blend = blend.beside(f"{BLEND}.own", personal.select(self.parts["all"]))
        return blend.with_own({f"{BLEND}.likeness": likeness})

    def eval_network(self, model: str, params: Params) -> Network:
        """The network, or what mixes its adapters with the client's own."""
        if model == "global":
            return self.network
        frozen = {id(parameter): parameter for parameter in self.network.parameters() if not parameter.requires_grad}
        body = deepcopy(part(self.network, 0, self.engine.body_layers()), frozen)
        return Network({BLEND: Blend(self.network, body, params.own[f"{BLEND}.likeness"][0], self.layers, self.share)})


def with_own_adapters(received: Params) -> Params:
    """The received tensors with the client's own adapters in the place of the shared ones."""
    return received.with_own(received.under("personal").own)


class Blend(nn.Module):
    """A network that mixes two adapters in each layer, for each sample as much as it is like those of a client.

    Two adapters are one of twice the rank, which ``shared`` runs with for each sample as if it were a client.

    Args:
        shared: The network with the shared adapters.
        own: Its body with the client's own adapters.
        likeness: Mean of the client's features, scaled to norm 1, ``[features]``.
        layers: Paths of the adapted layers.
        share: Share of the shared adapters that the client's own ones replace.
    """

    likeness: Tensor

    def __init__(
        self, shared: nn.Sequential, own: nn.Sequential, likeness: Tensor, layers: list[str], share: float
    ) -> None:
        super().__init__()
        self.shared = shared
        self.own = own
        self.layers = layers
        self.share = share
        self.without_vmap = bool(layers_without_vmap(shared))
        self.backend = Sequential() if self.without_vmap else Batched()
        self.register_buffer("likeness", likeness)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs, ``[batch, outputs]``."""
        weight = (F.normalize(self.own(inputs).flatten(1)) @ self.likeness)[:, None, None]
        shared = self.shared.state_dict()
        personal = self.own.state_dict()
        params = Params({}, {})
        for a, b in ((f"{path}.lora_A", f"{path}.lora_B") for path in self.layers):
            params.own[a] = torch.cat([(1 - self.share * weight) * shared[a], weight * personal[a]], 1)
            params.shared[b] = torch.cat([shared[b], personal[b]], 1)
        return self.backend.forward(self.shared, params, inputs[:, None])[:, 0]
