from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeInt
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Weighted
from pfl_lightning.seeding import Key
from pfl_lightning.server import similarity_attention
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, wide

PERSONAL = "personal"  # prefix of the model that a client has trained last
START = "start"  # prefix of the body with which it starts a round
DIRECTIONS = "directions"  # of the weights of its head, of length 1 in all
JOINED = "joined"  # 1 once it has trained after the warm-up


class PFedSim(Weighted):
    """FedAvg at first; then clients keep their heads, and start from a mix of those bodies whose heads are alike.

    Rule of a round from ``warmup_rounds`` on, before which it is FedAvg's; i and j are participants, W_ic are the
    weights for class c in the head of client i, and all clients begin with w, FedAvg's model:

        w_i    = SGD for epochs on f_i, from (body_i, head_i)
        s_ij   = max(0, mean_c cos(W_ic, W_jc)), at most 0.9999; s_ii = 0.9999
        v_ij   = -log(1 - s_ij)
        body_i = sum_j v_ij * body of w_j / sum_j v_ij
        head_i = head of w_i

    The cosine with zeros is 0. Clients are evaluated with w_i, or until they have one with w (``personal``), and with w
    (``global``), which stays as it is after the warm-up. A client whose head is like no other goes on from its own
    model. Statistics of BatchNorm are mixed with the body. The server has to see each model, so that there is no option
    for sums; its step takes time quadratic in the number of participants. Models are not pruned.

    Paper: Tan, Zhou, Liu, Wang, Yu, pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated
    Learning, 2023, arXiv:2305.15706.

    Differs: the warm-up is a number of rounds, since a run may be continued; in the paper it is half of them. The
    authors' code also mixes the last bodies of absent clients, by what their s_ij was when they last met.

    Args:
        warmup_rounds: Rounds of FedAvg.
        kwargs: Options of the bases.
    """

    display_name = "pFedSim"
    needs = ("rounds",)
    prunes = False
    eval_models = ("personal", "global")

    def __init__(self, warmup_rounds: NonNegativeInt = 50, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.warmup_rounds = warmup_rounds

    @property
    def head_weight(self) -> str:
        """Name of the weights of the head's linear layer."""
        return f"{self.network.linear_head(self.parts['head'])}.weight"

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Room for a client's model (``personal.*``), mixed body (``start.*``) and head's directions; none yet."""
        weight = tensors[self.head_weight]
        own = {DIRECTIONS: torch.zeros_like(weight), JOINED: weight.new_zeros(())}
        models = {**prefixed(PERSONAL, tensors), **prefixed(START, select(tensors, self.parts["body"]))}
        return {**super().initial_state(tensors, num_clients, seed), **repeated({**models, **own}, num_clients)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train from where the client starts, and keep the model."""
        own = received.under(PERSONAL).own | received.under(START).own
        trained, losses = super().local_update(cohort, self.once_joined(received, own), key)
        model = select(trained.own, self.parts["all"])
        weight = model[self.head_weight]
        directions = F.normalize(weight, dim=2) / weight.shape[1] ** 0.5  # their products are mean cosines
        has_joined = float(self.accounting.clock.rounds >= self.warmup_rounds)
        kept = {DIRECTIONS: directions, JOINED: torch.full_like(received.own[JOINED], has_joined)}
        bodies = prefixed(START, select(model, self.parts["body"]))
        return trained.with_own({**prefixed(PERSONAL, model), **bodies, **kept}), losses

    def once_joined(self, received: Params, own: Tree) -> Params:
        """Tensors of clients that have trained after the warm-up, ``[cohort, ...]``; of the others those of w."""
        model = received.select(self.parts["all"])
        joined = received.own[JOINED] > 0
        mixed = {name: torch.where(wide(joined, rows), rows, model.tree[name]) for name, rows in own.items()}
        return model.with_own(mixed)

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Step to the mean in the warm-up, and mix bodies afterwards."""
        if batch.round_index < self.warmup_rounds:
            super().server_update(mean, batch)
            return
        ids = batch.examples.host_ids.sort().values
        similarities = self.clients.inner_products([DIRECTIONS], ids).cpu()
        self.check_finite(similarities)
        bodies = [f"{START}.{name}" for name in self.parts["body"]]
        self.clients.mix(similarity_attention(similarities), bodies, ids=ids)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The model that a client has trained, or the global one."""
        if model == "global":
            return received.select(self.parts["all"])
        return self.once_joined(received, received.under(PERSONAL).own)
