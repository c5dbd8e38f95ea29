from typing import Any

from pfl_lightning.bounds import PositiveFloat
from pfl_lightning.client import Gradient
from pfl_lightning.methods.per_fedavg import PerFedAvg
from pfl_lightning.tree import Tree


class HFMAML(PerFedAvg):
    """Hessian-free Per-FedAvg: learns a global model that adapts to each client in one gradient step.

    Rule of a round; g is the gradient of a client's loss on one batch, the same batch throughout a step, and h nearly
    the Hessian times v:

        repeat epochs times, for each batch:
            v = g(w - inner_lr * g(w))
            h = (g(w + difference * v) - g(w - difference * v)) / (2 * difference)
            w = w - lr * (v - inner_lr * h)
        shared = shared - server_lr * (shared - sum_i weight_i * w_i)

    Clients are evaluated with the shared model after one step of ``inner_lr`` on one of their training batches
    (``adapted``), and with the shared model itself (``global``). ``weight_decay`` is 0 by default.

    Paper: Fallah et al., Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020, arXiv:2002.07948.

    Differs: the theory uses an independent batch for each of the three gradients; SRPFL's code and ours use one. That
    code also evaluates h at the wrong point and discards all but the last step; ours does neither.

    Args:
        inner_lr: Learning rate of the adaptation step, alpha; ``lr`` is beta, 0.1 in the papers.
        difference: Step size of the finite difference that approximates the Hessian product, delta.
        kwargs: Options of the bases.
    """

    display_name = "HF-MAML"

    independent_batch = False

    def __init__(self, inner_lr: PositiveFloat = 0.01, difference: PositiveFloat = 1e-3, **kwargs: Any) -> None:
        super().__init__(inner_lr=inner_lr, **kwargs)
        self.difference = difference

    def meta_gradient(self, tensors: Tree, grads: Tree, gradient: Gradient, extras: Tree) -> Tree:
        """The direction ``v - inner_lr * h`` for all clients at once.

        Args:
            tensors: w, ``[clients, ...]`` each.
            grads: g(w).
            gradient: g.
            extras: Extra tensors, of which there are none.
        """

        def shifted(by: float, along: Tree) -> Tree:
            return gradient({name: tensor + by * along[name] for name, tensor in tensors.items()})

        v = shifted(-self.inner_lr, grads)
        ahead = shifted(self.difference, v)
        behind = shifted(-self.difference, v)
        scale = self.inner_lr / (2 * self.difference)
        return {name: v[name] - scale * (ahead[name] - behind[name]) for name in tensors}
