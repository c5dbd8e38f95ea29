from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from pfl_lightning.bounds import PositiveFloat
from pfl_lightning.client import Examples, Gradient
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree


class PerFedAvg(Averaging):
    """First-order Per-FedAvg: learns a global model that adapts to each client in one gradient step.

    Rule of a round; g and h are gradients of a client's loss on two mini-batches that are drawn independently:

        repeat epochs times, for each pair of batches (for R steps: epochs=R, epoch_steps=1):
            w = w - lr * h(w - inner_lr * g(w))
        shared = shared - server_lr * (shared - sum_i weight_i * w_i)

    ``inner_lr`` is the paper's alpha, ``lr`` its beta. Clients are evaluated with the shared model after one step of
    ``inner_lr`` on one of their training batches (``adapted``), and with the shared model itself (``global``).
    ``weight_decay`` is 0 by default.

    Paper: Fallah et al., Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020, arXiv:2002.07948,
    Algorithm 1 with the first-order approximation of the gradient.

    Differs: pFedMe's code (arXiv:2006.08848) evaluates after two steps on test samples; ours uses training samples.

    Args:
        inner_lr: Learning rate of the adaptation step; ``lr_decay`` does not apply to it.
        kwargs: Options of the bases.
    """

    display_name = "Per-FedAvg"

    usual_weight_decay = 0.0
    eval_models = ("adapted", "global")
    independent_batch: ClassVar[bool] = True  # for the gradient behind the adaptation step

    def __init__(self, inner_lr: PositiveFloat = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inner_lr = inner_lr

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train by steps along the meta-gradient."""
        phase = replace(
            self.phase("all"),
            gradient_transform=self.meta_gradient,
            independent_batch=self.independent_batch,
        )
        return self.engine.train(cohort, received, phase, (*key, "all"))

    def meta_gradient(self, tensors: Tree, grads: Tree, gradient: Gradient, extras: Tree) -> Tree:
        """The gradient behind an adaptation step, for all clients at once.

        Args:
            tensors: w, ``[clients, ...]`` each.
            grads: g(w).
            gradient: h.
            extras: Extra tensors, of which there are none.
        """
        return gradient({name: tensor - self.inner_lr * grads[name] for name, tensor in tensors.items()})

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """The shared model after one adaptation step, or the shared model itself."""
        if model == "global":
            return received
        step = replace(
            self.phase("all", epochs=1),
            optimizer="SGD",
            lr=self.inner_lr,
            steps=1,
            momentum=0.0,
            weight_decay=0.0,
            clip_norm=None,
        )
        return self.engine.train(train, received, step, key)[0]
