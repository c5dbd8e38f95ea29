from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval
from pfl_lightning.client import Examples, Gradient
from pfl_lightning.methods.method import Method
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, wide

WEIGHT = "weight"  # of a client's own model in its mix


class APFL(Method):
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
        kwargs: See ``Method``.
    """

    eval_models = ("personal", "global")

    def __init__(self, alpha: ClosedUnitInterval = 0.5, adaptive: bool = True, **kwargs: Any) -> None:
        super().__init__(local_optimizer="SGD", momentum=0.0, eval_epochs=0, **kwargs)
        self.alpha, self.adaptive = alpha, adaptive

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """A model of each client's own (``personal.*``), which begins as the global one, and its weight."""
        own = prefixed("personal", select(tensors, self.engine.trainable))
        own[WEIGHT] = next(iter(own.values())).new_full((), self.alpha)
        return {**super().initial_state(tensors, num_clients, seed), **repeated(own, num_clients)}

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the global model, and beside it the client's own and its weight."""
        phase = self.phase("all", self.epochs)
        names = {f"personal.{name}" for name in self.engine.trainable} | {WEIGHT}
        phase = replace(phase, trainable=phase.trainable | names, gradient_transform=self.step_beside)
        return self.engine.train(cohort, received, phase, (*key, "all"))

    def step_beside(self, tensors: Tree, grads: Tree, gradient: Gradient, extras: Tree) -> Tree:
        """Move the clients' own models and their weights; the gradient of the global one stays as it is.

        Args:
            tensors: w, ``[clients, ...]`` each.
            grads: g(w).
            gradient: g.
            extras: The own models and their weights.
        """
        lr, weights = self.rate(self.local_sgd.lr), extras[WEIGHT].clone()
        mixes = mixed(tensors, extras)
        for name, slope in gradient(mixes).items():
            own = extras[f"personal.{name}"]
            slope = slope.add(mixes[name], alpha=self.local_sgd.decay_of(own.dim() - 1))
            if self.adaptive:
                extras[WEIGHT].sub_(lr * (own - tensors[name]).mul_(slope).reshape(len(own), -1).sum(1))
            own.addcmul_(wide(-lr * weights, own), slope)
        extras[WEIGHT].clamp_(0, 1)
        return grads

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The mix, or the global model."""
        if model == "global":
            return received
        return received.with_own(mixed(received.select(self.engine.trainable).tree, received.own))


def mixed(tensors: Tree, extras: Tree) -> Tree:
    """The clients' mixes of some models, ``[...]`` or ``[clients, ...]`` each, with their own ones."""
    owns = {name: extras[f"personal.{name}"] for name in tensors}
    return {
        name: torch.lerp(tensors[name].expand_as(own), own, wide(extras[WEIGHT], own)) for name, own in owns.items()
    }
