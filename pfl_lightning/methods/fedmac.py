from math import ceil
from typing import Any
from warnings import warn

from pfl_lightning.bounds import NonNegativeFloat, PositiveFloat
from pfl_lightning.client import Correlation
from pfl_lightning.data import federated
from pfl_lightning.methods.families.moving_copy import COPY, MovingCopy

PRODUCT = "correlation * lr * (local steps) * (rounds)"  # bounds the logarithm of the growth of the models
STABLE = 4
WARN_ABOVE = 5


class FedMac(MovingCopy):
    """FedMac: sparse personal models that are rewarded for correlation with the global one.

    Rule of a round; gamma and rho are ``sparsity.weight`` and ``sparsity.smoothing``:

        theta_i = w_i = w
        repeat epochs times, for each batch (for R steps: epochs=R, epoch_steps=1):
            repeat inner_steps times:
                theta_i = theta_i - lr * (gradient f_i(theta_i)
                                          + gamma * tanh(theta_i / rho) - correlation * w_i)
            w_i = w_i - copy_lr * correlation * (w_i - theta_i)
        w = w - server_lr * (w - sum_i weight_i * w_i)

    ``correlation`` is the paper's lambda, ``lr`` its a, ``copy_lr`` its eta,
    ``inner_steps`` its K, and the learning rate of ``server_optimizer`` its beta. Clients are evaluated with theta_i
    after such local training from w (``personal``), and with w (``global``). ``weight_decay`` is 0 by default.

    Unless ``weight_decay`` exceeds ``correlation``, on biases too (``decay_biases``), the objective has no lower bound,
    and training works since it ends: keep correlation * lr * (local steps) * (rounds) below about 4. See
    docs/evidence/derivations.md, FedMac.

    Paper: Liu et al., Sparse Personalized Federated Learning, IEEE TNNLS 2023, arXiv:2107.05330, Algorithm 1.

    Differs: the paper's server takes the plain mean (``weighting: uniform``); we weigh by samples, as pFedMe's code
    does.

    Args:
        correlation: Weight of the correlation between the personal model and the client's copy of the global one.
        copy_lr: Learning rate of the client's copy of the global model.
        kwargs: Options of the bases.
    """

    def __init__(self, correlation: NonNegativeFloat = 0.005, copy_lr: PositiveFloat = 15.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tie = Correlation(correlation, COPY)
        self.copy_lr = copy_lr

    def on_fit_start(self) -> None:
        """Warn before a run in which the models may grow without bound."""
        sgd = self.local_sgd
        batches = ceil(federated(self.trainer).training_counts.mean() / sgd.batch_size)  # of the mean client
        steps = self.inner_steps * self.local.epochs * min(sgd.steps or batches, batches)
        rates = sum(sgd.lr * self.schedule.factor(round_index) for round_index in range(self.trainer.max_steps))
        growth = self.tie.strength * rates * steps * max(1.0, self.configure_optimizers().defaults["lr"])
        if growth > WARN_ABOVE and not (sgd.decay_biases and sgd.weight_decay > self.tie.strength):
            warn(f"FedMac may diverge: {PRODUCT} is {growth:.3g}, and best below {STABLE}", stacklevel=2)

    @property
    def advice(self) -> str:
        """What to try if training diverges."""
        return f"keep {PRODUCT} below {STABLE} by a smaller model.correlation or model.local.lr"
