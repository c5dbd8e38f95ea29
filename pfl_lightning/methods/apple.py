from collections.abc import Iterable
from dataclasses import replace
from math import cos, pi
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeFloat, NonNegativeInt
from pfl_lightning.client import Examples, Gradient
from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.federation.client_states import all_rows
from pfl_lightning.methods.families.whole_models import WholeModels
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, mix, prefixed, repeated, select, wide, zeros_like

RELATIONS = "relations"  # p_i
CHANGE = "change"  # prefix of by how much w_i has moved in a round
ITSELF = "itself"  # 1 at the client's own place


class APPLE(WholeModels):
    """Every client mixes core models of all clients, by weights that it learns, and trains its own core model within.

    Rule of round t; w_i is the core model of client i, p_ij the weight of client j's in its mix, and n is the number of
    clients:

        s = (1 + cos(pi * t / mu_rounds)) / 2, from round mu_rounds on 0
        repeat epochs times, for each batch:
            g    = gradient of f_i at theta_i = sum_j p_ij * w_j
            w_i  = w_i - lr * p_ii * g
            p_ij = p_ij - relation_lr * (<g, w_j> + s * mu * (p_ij - 1 / n)), for all j

    All weights begin as 1 / n, and both moves are from the old w_i and p_ij. Clients are evaluated with theta_i
    (``personal``). With ``relation_lr`` 0 it is FedAvg with uniform weights, the local rate ``lr`` / n^2, and as the
    server's rate the number of participants. Statistics of BatchNorm are a client's own. There is no weight decay,
    momentum and clipping. The rest is as in ``WholeModels``, but that the server only passes core models on, and
    clients see each other's.

    Paper: Luo, Wu, Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning, IJCAI 2022,
    arXiv:2110.08394.

    Differs: in the paper weights begin as the clients' shares of all samples, and are drawn to these. A client receives
    all core models, which is the paper's case without a limit. All core models begin alike; in the authors' code each
    begins at random. That code has momentum, and its mu counts twice.

    Args:
        relation_lr: Learning rate of the weights, the paper's eta_2.
        mu: Weight of the term that draws them to the mean.
        mu_rounds: Rounds after which it is gone, the paper's L.
        kwargs: Options of the bases.
    """

    weighting = "uniform"
    eval_models = ("personal",)
    usual_weight_decay = 0.0
    fixed_local = MappingProxyType(
        {"optimizer": "SGD", "momentum": 0.0, "weight_decay": 0.0, "decay_biases": False, "clip_norm": None}
    )

    def __init__(
        self,
        relation_lr: NonNegativeFloat = 0.001,
        mu: NonNegativeFloat = 0.1,
        mu_rounds: NonNegativeInt = 20,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.relation_lr = relation_lr
        self.mu = mu
        self.mu_rounds = mu_rounds

    def server_state(self, tensors: Tree) -> Tree:
        """All core models, ``[clients, ...]``."""
        return repeated(select(tensors, self.engine.trainable), self.num_clients)

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The core model of each client, and its weights."""
        equal = next(self.network.parameters()).new_full((1, self.num_clients), 1 / self.num_clients)
        return {**super().initial_state(tensors, num_clients, seed), RELATIONS: equal.expand(num_clients, -1)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the core model and the weights within the mix."""
        relations = received.own[RELATIONS]
        changes = zeros_like(select(received.own, self.engine.trainable))
        itself = F.one_hot(cohort.ids, self.num_clients).to(relations)
        start = received.with_own({**prefixed(CHANGE, changes), ITSELF: itself})
        phase = self.phase("all")
        phase = replace(
            phase,
            trainable=phase.trainable | {RELATIONS} | {f"{CHANGE}.{name}" for name in changes},
            gradient_transform=self.move,
            after_step=lambda tensors, extras: mixed(extras, tensors),
        )
        trained, losses = self.engine.train(cohort, start.with_own(mixed(start.tree, changes)), phase, (*key, "all"))
        cores = {name: received.own[name] + change for name, change in trained.under(CHANGE).own.items()}
        return trained.with_own(cores), losses

    def move(self, tensors: Tree, grads: Tree, gradient: Gradient, extras: Tree) -> Tree:
        """Move the core model and the weights; the mixes themselves take no step, and are mixed again after it.

        Args:
            tensors: theta, ``[clients, ...]`` each.
            grads: g.
            gradient: Computes g elsewhere.
            extras: The core models at the start of the round, the changes of the clients' own, and the weights.
        """
        relations = extras[RELATIONS]
        itself = extras[ITSELF]
        rounds = self.accounting.clock.rounds
        strength = self.mu * (1 + cos(pi * rounds / self.mu_rounds)) / 2 if rounds < self.mu_rounds else 0.0
        slopes = strength * (relations - 1 / self.num_clients)
        share = (relations * itself).sum(1)
        with torch.autocast(relations.device.type, enabled=False):  # mixed precision is for g alone
            for name, slope in grads.items():
                flat = slope.reshape(len(slope), -1).to(relations)
                change = extras[f"{CHANGE}.{name}"]
                slopes += flat @ extras[f"server.{name}"].reshape(self.num_clients, -1).T
                slopes += itself * (flat * change.reshape(flat.shape)).sum(1, keepdim=True)
                change.sub_(wide(share, slope) * slope, alpha=self.rate(self.local_sgd.lr))
        relations.sub_(slopes, alpha=self.rate(self.relation_lr))
        return {}

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Pass on the core models; the network becomes their mean."""
        for name, stack in self.server.tree.items():
            stack.copy_(all_rows(self.clients.stack(name), self.num_clients))
        super().server_update(mean, batch)

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Every participant receives the core models of all others, and sends its own unless that is dropped."""
        model = self.clients.first(self.engine.trainable)
        up.add(model, len(batch.examples))
        down.add(model, len(batch.participants) * (self.num_clients - 1))

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The client's mix."""
        cores = received.under("server").shared
        return received.with_own(mix(received.own[RELATIONS], cores)).select(self.parts["all"])


def mixed(extras: Tree, names: Iterable[str]) -> Tree:
    """The mixes of the parameters with these names, ``[clients, ...]``."""
    relations = extras[RELATIONS]
    share = (relations * extras[ITSELF]).sum(1)
    mixes = {}
    for name, rows in mix(relations, {name: extras[f"server.{name}"] for name in names}).items():
        mixes[name] = rows + wide(share, rows) * extras[f"{CHANGE}.{name}"]
    return mixes
