from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval
from pfl_lightning.client import Examples, Gradient
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, wide

WEIGHT = "weight"  # of a client's own model in its mix


class APFL(Averaging):
    """Every client mixes the global model with one of its own, with a weight that it learns.

    Rule of a round; the mix of client i is m_i = a_i * v_i + (1 - a_i) * w_i, and g are gradients of f_i:

        w_i = w
        repeat epochs times, for each batch:
            a_i = a_i - lr * <v_i - w_i, g(m_i)>, from 0 to 1    # with adaptive
            v_i = v_i - lr * a_i * g(m_i)
            w_i = w_i - lr * g(w_i)
        w   = w - server_lr * (w - sum_i weight_i * w_i)

    All three move at once: what stands on the right are values before the step. ``weight_decay`` is a part of f_i;
    ``clip_norm`` is for g(w_i) alone. Clients are evaluated with a mix of their model and the current w (``personal``),
    and with w (``global``). With ``alpha`` 0 that is not adaptive, the mix is FedAvg's model.

    Paper: Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, 2020, arXiv:2003.13461, Algorithm 1, with
    the weight of its eq. (10).

    Differs: the paper evaluates the mix with w_i, before the server's step; statistics of BatchNorm are the global
    model's, and follow the inputs of both gradients. The authors' code moves a_i in the first step of a round alone,
    and adds 0.02 * a_i to its gradient.

    Args:
        alpha: Weight of a client's own model at the beginning.
        adaptive: Whether the weight is learned.
        kwargs: Options of the bases.
    """

    eval_models = ("personal", "global")
    fixed_local = MappingProxyType({"optimizer": "SGD", "momentum": 0.0})

    def __init__(self, alpha: ClosedUnitInterval = 0.5, adaptive: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = alpha
        self.adaptive = adaptive

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """A model of each client's own (``personal.*``), which begins as the global one, and its weight."""
        personal = prefixed("personal", select(tensors, self.engine.trainable))
        personal[WEIGHT] = next(iter(personal.values())).new_full((), self.alpha)
        return {**super().initial_state(tensors, num_clients, seed), **repeated(personal, num_clients)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the global model, and beside it the client's own and its weight."""
        phase = self.phase("all")
        personal = {f"personal.{name}" for name in self.engine.trainable} | {WEIGHT}
        phase = replace(phase, trainable=phase.trainable | personal, gradient_transform=self.step_personal)
        return self.engine.train(cohort, received, phase, (*key, "all"))

    def step_personal(self, tensors: Tree, grads: Tree, gradient: Gradient, extras: Tree) -> Tree:
        """Move the clients' own models and their weights; the gradient of the global one stays as it is.

        Args:
            tensors: w, ``[clients, ...]`` each.
            grads: g(w).
            gradient: g.
            extras: The own models and their weights.
        """
        lr = self.rate(self.local_sgd.lr)
        weights = extras[WEIGHT].clone()
        mixes = mixed(tensors, extras)
        for name, slope in gradient(mixes).items():
            personal = extras[f"personal.{name}"]
            slope = slope.add(mixes[name], alpha=self.local_sgd.decay_of(personal.dim() - 1))
            if self.adaptive:
                extras[WEIGHT].sub_(lr * (personal - tensors[name]).mul_(slope).reshape(len(personal), -1).sum(1))
            personal.addcmul_(wide(-lr * weights, personal), slope)
        extras[WEIGHT].clamp_(0, 1)
        return grads

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The mix, or the global model."""
        if model == "global":
            return received
        return received.with_own(mixed(received.select(self.engine.trainable).tree, received.own))


def mixed(tensors: Tree, extras: Tree) -> Tree:
    """The clients' mixes of some models, ``[...]`` or ``[clients, ...]`` each, with their own ones."""
    mixes = {}
    for name, tensor in tensors.items():
        personal = extras[f"personal.{name}"]
        mixes[name] = torch.lerp(tensor.expand_as(personal), personal, wide(extras[WEIGHT], personal))
    return mixes
