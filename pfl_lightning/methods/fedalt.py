from copy import copy
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Aggregated
from pfl_lightning.models import Network, Part, add_second_adapters, both_factors
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, movable, repeated, select, wide

COUNTED = "counted"  # whether a client's adapters are in the server's mean, and how many are
NEW = "new"  # whether they come in


class FedALT(Aggregated):
    """Each client's own adapters beside the mean of all others', which are frozen; a gate mixes both for each token.

    Rule of a round; h is an adapted layer of client i, and x the input of a token:

        A'_i = mean of A_j over all other clients j, and B'_i of B_j
        h(x) = W x + alpha / rank * (g_0 B'_i A'_i x + g_1 B_i A_i x),  g = softmax(G_i x)
        (A_i, B_i, G_i, head_i) = local optimizer for epochs on f_i, from what client i has

    Others are clients that have taken part, with what they had then; without any, B'_i is 0. The server keeps the mean
    over all n of them, from which a client takes its own part out: A'_i = (n mean - A_i) / (n - 1). So it learns sums
    of changes alone. Clients are evaluated with this model (``personal``). Models are not pruned.

    Paper: Bian, Wang, Zhang, Xu, FedALT: Federated Fine-Tuning through Adaptive Local Training with Rest-of-World
    LoRA, AAAI 2026, arXiv:2503.11880.

    Differs: the paper's language models have no new head, and all clients take part; here a client keeps its head.

    Args:
        kwargs: Options of the bases; the default ``adapter`` is ``LoRA``.
    """

    keeps: Part = "head|*lora_*"
    uploads = (NEW,)
    weighting = "uniform"
    needs = ("rounds",)
    prunes = uploads_models = False  # but changes of adapters
    eval_models = ("personal",)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.adapter = both_factors(self.adapter, type(self).__name__)
        self.scale = self.adapter.scale

    def extend_network(self, network: Network) -> None:
        """Add the others' adapters and the gate to each adapted layer."""
        add_second_adapters(network, self.scale)

    def own_factors(self, params: Params) -> Tree:
        """The clients' own adapters, by the names of the others'."""
        return {name: params.own[name.replace(".rest_", ".lora_")] for name in sorted(self.shared)}

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """What clients train, and whether it is in the mean."""
        own = super().initial_state(tensors, num_clients, seed)
        return {**own, **repeated(self.server_state(tensors), num_clients)}

    def server_state(self, tensors: Tree) -> Tree:
        """How many clients' adapters are in the mean."""
        return {COUNTED: next(iter(tensors.values())).new_zeros((), dtype=torch.int64)}

    def with_rest(self, received: Params) -> Params:
        """What clients start with: their own part is taken out of the mean."""
        counted = received.own[COUNTED]
        others = received.tree[f"server.{COUNTED}"] - counted
        share = counted / others.clamp(min=1)
        rest = {}
        for name, own in self.own_factors(received).items():
            mean = received.tree[name]
            without = mean + wide(share.to(own), own) * (mean - own)
            rest[name] = without * wide(others > 0, own)
        return received.with_own(rest)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the client's own adapters, gates and head, and upload how the mean changes by them."""
        trained, losses = super().local_update(cohort, self.with_rest(received), key)
        counted = received.own[COUNTED]
        uploads = {NEW: (1 - counted).to(losses), COUNTED: torch.ones_like(counted)}
        before = self.own_factors(received)
        for name, own in self.own_factors(trained).items():
            mean = received.tree[name]
            uploads[name] = mean + own - torch.where(wide(counted > 0, own), before[name], mean)
        return trained.with_own(uploads), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Step to the mean over all clients that have taken part."""
        uploads = len(batch.examples)
        share = uploads / self.server.tree[COUNTED].add_((uploads * mean[NEW]).round().long())
        before = select(movable(self.network), self.shared)
        super().server_update({n: old + share * (mean[n] - old) for n, old in before.items()}, batch)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The client's model with both adapters."""
        return self.with_rest(received).select(self.parts["all"])

    def eval_network(self, model: str, params: Params) -> Network:
        """The network as another object, as what it adds to a layer is not merged or exported as one adapter."""
        return copy(self.network)
