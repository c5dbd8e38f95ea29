from types import MappingProxyType

from torch import Tensor

from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, wide

STEPS = "steps"


class FedNova(FineTuned, Averaging):
    """FedAvg for clients that take different numbers of local steps, without a bias towards those that take many.

    Rule of a round; a_i is the number of local steps of client i, or with ``momentum`` rho the sum of the factors by
    which its gradients have moved it, (K - rho * (1 - rho^K) / (1 - rho)) / (1 - rho) for K steps:

        w_i = SGD for epochs on f_i, from w
        w   = w - server_lr * (sum_i weight_i * a_i) * (sum_i weight_i * (w - w_i) / a_i)

    With as many steps of every client it is FedAvg. Models are not pruned, since clients upload scaled changes.

    Paper: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS
    2020, arXiv:2007.07481, the rule named FedNova, with the mean of the a_i as its effective number of steps.
    """

    uploads = (STEPS,)
    prunes = False
    fixed_local = MappingProxyType({"optimizer": "SGD"})

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train, and scale what is uploaded of the change by the steps."""
        phase = self.phase("all")
        trained, losses = self.engine.train(cohort, received, phase, (*key, "all"))
        rho = phase.momentum
        steps = phase.steps_of(cohort.device_counts).to(losses.dtype)
        if rho == 1:
            steps = steps * (steps + 1) / 2
        elif rho:
            steps = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        uploads = {STEPS: steps}
        for name in self.engine.trainable:
            start = received.tree[name]
            uploads[name] = start + (trained.own[name] - start) / wide(steps, trained.own[name])
        return trained.with_own(uploads), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Scale the mean change by the mean number of steps."""
        target = dict(mean)
        for name, start in self.shared_parameters.items():
            target[name] = start + mean[STEPS] * (mean[name] - start)
        super().server_update(target, batch)
