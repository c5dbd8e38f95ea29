"""What SRPFL's code trains under the name of HF-MAML, and FedAvg evaluated as HF-MAML is; experiments, not methods."""

from dataclasses import replace

from torch import Tensor

from pfl_lightning.client import Examples, Gradient
from pfl_lightning.methods import HFMAML, FedAvg, PerFedAvg
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree


class AliasedHFMAML(HFMAML):
    """HF-MAML as SRPFL's code computes it.

    Loading a state in place there also changes the one that was to be kept, so that every batch moves the model by
    ``inner_lr``, and the meta-step is lost except the last one::

        repeat epochs times, for each batch:
            w = w - inner_lr * g(w)
        w = w - inner_lr * g(w)                             # with one batch more
        h = (g(w + difference * g(w)) - g(w)) / (2 * difference)    # half the Hessian product, at the moved point
        w = w - lr * (g(w) - inner_lr * h)

    Differs: that code's last step is on the last batch of the last epoch; here it is on a batch drawn after it.
    """

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Steps of ``inner_lr``, and one meta-step at the end."""
        steps = self.phase("all", lr=self.inner_lr)
        params, _ = self.engine.train(cohort, received, steps, (*key, "all"))
        last = replace(steps, epochs=1, steps=1, gradient_transform=self.last_direction)
        return self.engine.train(cohort, params, last, (*key, "last"))

    def last_direction(self, tensors: Tree, grads: Tree, gradient: Gradient, extras: Tree) -> Tree:
        """The last batch's step of ``inner_lr`` and the meta-step from there, as one step of ``inner_lr``.

        Args:
            tensors: w, ``[clients, ...]`` each.
            grads: g(w).
            gradient: g.
            extras: Extra tensors, of which there are none.
        """
        moved = {name: tensor - self.inner_lr * grads[name] for name, tensor in tensors.items()}
        v = gradient(moved)
        ahead = gradient({name: tensor + self.difference * v[name] for name, tensor in moved.items()})
        scale = self.inner_lr / (2 * self.difference)
        return {
            name: grad + self.local_sgd.lr / self.inner_lr * (v[name] - scale * (ahead[name] - v[name]))
            for name, grad in grads.items()
        }


class AdaptedFedAvg(PerFedAvg):
    """FedAvg, evaluated like HF-MAML: after one step of ``inner_lr`` on a training batch, and without."""

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """FedAvg's local training."""
        return FedAvg.local_update(self, cohort, received, key)
