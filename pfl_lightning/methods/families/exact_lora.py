from typing import Any

import torch
from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.federation.cohort import Trained
from pfl_lightning.methods.families.averaging import Aggregated, Weighted
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.models import Network, Part, adapted_layers, both_factors, in_its_layout, product
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, movable, select

TRAINED = "head|*lora_*"
PRODUCTS = "products"  # prefix of B A of each layer
MOVED = "moved"  # rank of all changes of W so far
KNOWN = "known"  # what it was when each client received W for its last upload


class ExactLoRA(FineTuned, Weighted, Aggregated):
    """Adapters of which the server averages the products B A: what the factors cannot hold goes into the weights W.

    Rule of a server, with adapters A, B for the next round:

        W = W + alpha / rank * (sum_i weight_i * B_i A_i - B A)

    So the adapted layers W + alpha / rank * B A become the mean of the clients' ones. Clients train A, B and the head,
    and send these: the server multiplies the factors. A secure sum needs the products, which then are sent too. Clients
    receive the changes of W that they do not have yet, as factors or as a matrix, whichever is smaller. Models are not
    pruned.

    Attributes:
        rank: Rank of the adapters.
        strength: The factor alpha / rank.
    """

    sent: Part = TRAINED  # as it is, beside the changes of W
    uploads = (PRODUCTS,)
    needs = ("rounds",)
    prunes = uploads_models = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.adapter = both_factors(self.adapter, type(self).__name__)
        self.rank = int(self.adapter.rank)
        self.strength = self.adapter.scale

    @property
    def layers(self) -> list[str]:
        """Paths of the layers that are adapted."""
        return adapted_layers(self.parts["all"])

    def rank_of_change(self, uploads: int) -> int:
        """The largest rank that the change of W can have in a round with so many uploads."""
        raise NotImplementedError

    def extend_network(self, network: Network) -> None:
        """Let the weights of the adapted layers move."""
        layers: list[Any] = [layer for layer in network.modules() if hasattr(layer, "lora_hook")]
        for layer in layers:
            layer.weight.requires_grad_()
            layer.weight.data = layer.weight.data.clone()  # layers tied to it stay as they are

    @property
    def finetuned_part(self) -> Part:
        """See ``FineTuned``; clients do not train W."""
        part = super().finetuned_part
        return TRAINED if part == self.trains else part

    def server_state(self, tensors: Tree) -> Tree:
        """W has not changed yet."""
        zeros = next(iter(tensors.values())).new_zeros(self.num_clients, dtype=torch.int64)
        return {MOVED: zeros[0], KNOWN: zeros}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the adapters and the head, on FedIT's mini-batches."""
        return self.engine.train(cohort, received, self.phase(TRAINED), (*key, self.trains))

    def participate(self, batch: Round, places: Tensor, cohort: Examples) -> Trained:
        """See ``Method.participate``; the products of a client's factors are summed up with them."""
        trained = super().participate(batch, places, cohort)
        rows = trained.upload
        factors = {path: (rows[f"{path}.lora_B"], rows[f"{path}.lora_A"]) for path in self.layers}
        products = {f"{PRODUCTS}.{path}": product(*each) for path, each in factors.items()}
        return trained._replace(upload={**rows, **products})

    @torch.no_grad()
    def server_update(self, mean: Tree, batch: Round) -> None:
        """Set the adapters and the head to what is given, and W so that the adapted layers are the mean."""
        super().server_update(mean, batch)
        for path in self.layers:
            layer: Any = self.network.get_submodule(path)
            change = self.strength * (mean[f"{PRODUCTS}.{path}"] - product(layer.lora_B, layer.lora_A))
            layer.weight += in_its_layout(layer, change)
        state = self.server.tree
        state[KNOWN][batch.examples.host_ids.to(self.device)] = state[MOVED]
        state[MOVED] += self.rank_of_change(len(batch.examples))

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Participants receive what is sent as it is, and the changes of W since they last took part."""
        down.add(select(movable(self.network), self.parts[self.sent]), len(batch.participants))
        state = self.server.tree
        lacking = state[MOVED] - state[KNOWN][batch.participants.to(self.device)]
        for rank, clients in zip(*(each.tolist() for each in lacking.unique(return_counts=True)), strict=True):
            down.add(self.change(rank), clients)

    def change(self, rank: int) -> Tree:
        """Tensors of the size of a change of W of this rank, under the network's names."""
        change: Tree = {}
        for path in self.layers:
            weight = self.network.get_parameter(f"{path}.weight")
            outputs, inputs = weight.shape
            if rank * (outputs + inputs) < weight.numel():
                change |= {f"{path}.lora_A": weight.new_empty(rank, inputs)}
                change |= {f"{path}.lora_B": weight.new_empty(outputs, rank)}
            else:
                change |= {f"{path}.weight": weight}
        return change
