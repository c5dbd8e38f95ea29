from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.client.layers import part
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.fedcp import discrepancy
from pfl_lightning.seeding import Key
from pfl_lightning.tasks.classification import log_probabilities
from pfl_lightning.tree import Params, Tree, prefixed, repeated, wide

PERSONAL = "personal"  # prefix of a client's inherited model
PARTICIPATIONS = "participations"  # of a client so far
TEMPERATURE = 4.0  # of what the inherited model predicts, as in the authors' code


class FedPHP(Averaging):
    """FedAvg whose clients keep a running mean of their past models, which teaches the one that they train.

    Rule of a round; h_i is the mean of client i, and k the number of rounds in which it has taken part before:

        loss = (1 - strength) * cross-entropy + strength * R(w_i, h_i)   # h_i stays as it is
        w_i  = SGD for epochs on this loss over client i's samples, from w
        m    = mu * min(k / expected, 1)
        h_i  = m * h_i + (1 - m) * w_i
        w    = w - server_lr * (w - sum_i weight_i * w_i)

    R compares the two models on a mini-batch: ``mmd`` is FedCP's distance of their features, and ``kd`` the
    cross-entropy of the outputs of w_i with the softmax of those of h_i / 4 as targets. A client that takes part for
    the first time has no h_i, and trains on cross-entropy alone. With ``strength`` 0 the shared model is FedAvg's, and
    with ``mu`` 0 h_i is the client's last model. Clients are evaluated with h_i, or before their first round with w
    (``personal``), and with w (``global``).

    Paper: Li, Zhan, Shao, Li, Song, FedPHP: Federated Personalization with Inherited Private Models, ECML-PKDD 2021.

    Differs: in the paper ``expected`` is the share of clients in a round times the number of rounds; here it is a
    number of its own, since a run may be continued. In the authors' code the first model also teaches clients that have
    no h_i yet, and MMD has other widths.

    Args:
        strength: Weight of R, the authors' lambda.
        mu: Largest weight of the past models.
        expected: Number of rounds of a client after which they have it.
        transfer: How h_i teaches: by its features (``mmd``), or by its outputs (``kd``).
        kwargs: Options of the bases.
    """

    needs = ("classes", "features")
    eval_models = ("personal", "global")

    def __init__(
        self,
        strength: ClosedUnitInterval = 0.1,
        mu: ClosedUnitInterval = 0.9,
        expected: PositiveInt = 100,
        transfer: Literal["mmd", "kd"] = "mmd",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.strength = strength
        self.mu = mu
        self.expected = expected
        self.transfer = transfer

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """Room for each client's mean (``personal.*``), of no model yet."""
        none = next(iter(tensors.values())).new_zeros(())
        own = repeated({**prefixed(PERSONAL, tensors), PARTICIPATIONS: none}, num_clients)
        return {**super().initial_state(tensors, num_clients, seed), **own}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train near the mean of past models, and add the trained model to it."""
        phase = self.phase("all")
        if self.strength:
            phase = replace(phase, feature_loss=self.inheriting_losses, frozen_models=(PERSONAL,))
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        earlier = received.own[PARTICIPATIONS]
        mean = averaged(received, trained, self.mu * (earlier / self.expected).clamp(max=1))
        return trained.beside(PERSONAL, mean).with_own({PARTICIPATIONS: earlier + 1}), losses

    def inheriting_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        apart = self.divergences if self.transfer == "kd" else feature_distance
        strength = self.strength * (extras[PARTICIPATIONS] > 0)
        term = extras["amounts"] * strength * apart(outputs, features, extras)
        losses: Tensor = (1 - strength) * self.sample_losses(outputs, targets) + term
        return losses

    def divergences(self, outputs: Tensor, features: Tensor, extras: Tree) -> Tensor:
        """The cross-entropy of each sample with the prediction of the client's mean, ``[batch]``."""
        head = {name: extras[f"{PERSONAL}.{name}"] for name in self.parts["head"]}
        inherited = functional_call(part(self.network, self.engine.body_layers()), head, extras[PERSONAL])
        taught = log_probabilities(inherited / TEMPERATURE).exp()
        return -(taught * log_probabilities(outputs)).sum(1)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The client's mean, or the shared model."""
        if model == "global":
            return received
        has_one = received.own[PARTICIPATIONS] > 0
        models = received.under(PERSONAL).own.items()
        return received.with_own({n: torch.where(wide(has_one, own), own, received.tree[n]) for n, own in models})


def feature_distance(outputs: Tensor, features: Tensor, extras: Tree) -> Tensor:
    """The MMD of the features and those by the client's mean, for a mini-batch."""
    weights = extras["weights"] * extras["amounts"]
    return discrepancy(features.flatten(1), extras[PERSONAL].flatten(1), weights)


def averaged(received: Params, trained: Params, shares: Tensor) -> Params:
    """The clients' means after a round.

    Args:
        received: Those before, under ``personal``.
        trained: The trained models.
        shares: Weights of the means before, ``[cohort]``.
    """
    means = {}
    for name, before in received.under(PERSONAL).own.items():
        model = trained.tree[name].expand_as(before)
        means[name] = torch.lerp(model, before, wide(shares, before)) if before.is_floating_point() else model
    return Params({}, means)
