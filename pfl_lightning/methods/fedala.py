from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, PositiveInt, Share
from pfl_lightning.client import Examples, Gradient
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select

# prefixes: a client's own last head, the received one, and the weights between them
LOCAL = "local"
GLOBAL = "global"
WEIGHT = "weight"


class FedALA(Averaging):
    """FedAvg whose clients start between the shared model and their last own one, by a weight for each parameter.

    Rule of a round; v_i is the head of client i after its last round, w the shared one, W_i has a weight in [0, 1] for
    each of its parameters, and g is a gradient of f_i at the received body with the head s_i:

        s_i = v_i + (w - v_i) * W_i                                         # entry by entry
        repeat weight_epochs times, for each batch of a share of the samples:
            W_i = W_i - weight_lr * g(s_i) * (w - v_i), and at least 0 and at most 1
            s_i = v_i + (w - v_i) * W_i
        (body_i, v_i) = SGD for epochs on f_i, from (body, s_i)
        body, w = body, w - server_lr * (body, w - sum_i weight_i * (body_i, v_i))

    The head are the paper's p layers (``head``, 1). All weights begin at 1, which is the shared model, and all v_i as
    the first shared head. Clients are evaluated with what they would start a round with, (body, s_i) (``personal``),
    and with the shared model (``global``). With ``weight_lr`` 0 it is FedAvg.

    Paper: Zhang, Hua, Wang, Song, Xue, Ma, Guan, FedALA: Adaptive Local Aggregation for Personalized Federated
    Learning, AAAI 2023, arXiv:2212.01197, Algorithm 1.

    Differs: the paper learns the weights until they have converged when a client first has a model of its own, and for
    one epoch in later rounds; here it is ``weight_epochs`` in each.

    Args:
        weight_lr: Learning rate of the weights, the paper's eta; the same in all rounds.
        weight_epochs: Epochs on the weights per round; full ones, whatever ``epoch_steps`` says.
        share: Share of a client's samples, drawn anew in each round, on which it learns the weights; the paper's s.
        kwargs: Options of the bases.
    """

    needs = ("head",)
    eval_models = ("personal", "global")

    def __init__(
        self,
        weight_lr: NonNegativeFloat = 1.0,
        weight_epochs: PositiveInt = 1,
        share: Share = 0.8,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.weight_lr = weight_lr
        self.weight_epochs = weight_epochs
        self.share = share

    @property
    def weighted(self) -> frozenset[str]:
        """Names of the parameters that have weights."""
        return self.parts["head"] & self.engine.trainable

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The head of each client (``local.*``), and weights of 1 (``weight.*``)."""
        head = select(tensors, self.weighted)
        weights = {name: torch.ones_like(tensor) for name, tensor in head.items()}
        first = {**prefixed(LOCAL, head), **prefixed(WEIGHT, weights)}
        return {**super().initial_state(tensors, num_clients, seed), **repeated(first, num_clients)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Learn where to start, train from there, and keep the head."""
        start = self.learned_start(cohort, received, key)
        trained, losses = super().local_update(cohort, start, key)
        return trained.with_own(prefixed(LOCAL, select(trained.own, self.weighted))), losses

    def learned_start(self, cohort: Examples, received: Params, key: Key) -> Params:
        """The models that clients start with, and their weights."""
        begin = received.beside(GLOBAL, received.select(self.weighted))
        begin = begin.with_own(mixed(begin.tree, sorted(self.weighted)))
        phase = replace(
            self.phase("head", self.weight_epochs),
            trainable=self.weighted | {f"{WEIGHT}.{name}" for name in self.weighted},
            steps=None,
            momentum=0.0,
            penalty=None,
            gradient_transform=self.move_weights,
            after_step=lambda tensors, extras: mixed(extras, tensors),
        )
        return self.engine.train(drawn(cohort, self.share, (*key, "share")), begin, phase, (*key, WEIGHT))[0]

    def move_weights(self, tensors: Tree, grads: Tree, gradient: Gradient, extras: Tree) -> Tree:
        """Move the weights; the heads themselves take no step, and are mixed again after it.

        Args:
            tensors: s, ``[clients, ...]`` each.
            grads: g(s).
            gradient: g.
            extras: v, w and the weights.
        """
        for name, slope in grads.items():
            towards = extras[f"{GLOBAL}.{name}"] - extras[f"{LOCAL}.{name}"]
            extras[f"{WEIGHT}.{name}"].sub_(self.weight_lr * slope * towards).clamp_(0, 1)
        return {}

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The model that the client would start with, or the shared one."""
        return self.learned_start(train, received, key) if model == "personal" else received


def mixed(extras: Tree, names: Iterable[str]) -> Tree:
    """The mix v + (w - v) * W of the parameters with these names, ``[clients, ...]``."""
    mixes = {}
    for name in names:
        local, shared, weight = (extras[f"{prefix}.{name}"] for prefix in (LOCAL, GLOBAL, WEIGHT))
        mixes[name] = local + (shared - local) * weight
    return mixes


def drawn(examples: Examples, share: float, key: Key) -> Examples:
    """About this share of each client's examples, drawn at random; at least one of each."""
    counts = (share * examples.counts.double()).round().long().clamp(min=1)
    return replace(examples.sample(key, examples.longest), counts=counts)
