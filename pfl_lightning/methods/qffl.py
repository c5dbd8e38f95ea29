from types import MappingProxyType
from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples, squared_norms
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import UniformAveraging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, wide

CURVATURE = "curvature"
LEAST = 1e-10  # what losses have added


class QFFL(FineTuned, UniformAveraging):
    """FedAvg that minimizes sum_i F_i^(q+1) / (q+1), so that clients with large losses F_i count more.

    Rule of a round, q-FedAvg; F_i is the loss of w on all training samples of client i, and L = 1 / lr:

        w_i     = SGD for epochs on f_i, from w
        delta_i = L * (w - w_i)
        h_i     = q * F_i^(q-1) * |delta_i|^2 + L * F_i^q
        w       = w - server_lr * (sum_i F_i^q * delta_i) / (sum_i h_i)

    With ``q`` 0 it is FedAvg with uniform weights. Models are not pruned, since clients upload scaled changes.

    Paper: Li, Sanjabi, Beirami, Smith, Fair Resource Allocation in Federated Learning, ICLR 2020, arXiv:1905.10497,
    Algorithm 2.

    Differs: the paper's objective weighs F_i^(q+1) by the client's share of all samples, with which it draws clients
    before it takes these plain sums; here all clients are drawn equally often. As in the authors' code F_i has 1e-10
    added, so that a client whose loss is 0 does no harm. What is uploaded is w minus the scaled change, of which
    float32 keeps few digits where F_i^q is far below 1e-3.

    Args:
        q: How much more; the larger, the more even are the losses.
        kwargs: Options of the bases.
    """

    display_name = "q-FFL"
    uploads = (CURVATURE,)
    prunes = False
    fixed_local = MappingProxyType({"optimizer": "SGD"})

    def __init__(self, q: NonNegativeFloat = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.q = q

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train, and scale what is uploaded of the change by the loss."""
        before = self.engine.mean_losses(cohort, received) + LEAST
        phase = self.phase("all")
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        powers = before**self.q
        rate = phase.lr or 1.0  # at a rate of 0 nothing has changed
        changes = {name: received.tree[name] - trained.own[name] for name in sorted(self.engine.trainable)}
        square = squared_norms(changes) / rate**2
        uploads = {CURVATURE: self.q * before ** (self.q - 1) * square + powers / rate}
        for name, change in changes.items():
            uploads[name] = received.tree[name] - wide(powers, change) * change / rate
        return trained.with_own(uploads), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Divide the mean change by the mean curvature."""
        target = dict(mean)
        for name, start in self.shared_parameters.items():
            target[name] = start + (mean[name] - start) / mean[CURVATURE]
        super().server_update(target, batch)
