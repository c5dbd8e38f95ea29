from dataclasses import replace
from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree

ABSENT = 1e-8  # stands for no samples: a shift of 100
SHIFT = "shift"


class FedLC(FineTuned, Averaging):
    """FedAvg whose clients train rare classes against a margin: their outputs count as lower than they are.

    Rule of a round; o are the outputs, and client i has n_ic samples of class c:

        loss = cross-entropy of o_c - strength * n_ic^(-1/4), for all classes c
        w_i  = SGD for epochs on the mean of this loss over the samples of client i, from w
        w    = w - server_lr * (w - sum_i weight_i * w_i)

    Models predict by o itself. With ``strength`` 0, or for clients with as many samples of each class, it is FedAvg.

    Paper: Zhang, Li, Li, Xu, Wu, Ding, Wu, Federated Learning with Label Distribution Skew via Logits Calibration, ICML
    2022, arXiv:2209.00189.

    Differs: the paper's softmax leaves the true class out of its denominator; codes that others use have the ordinary
    one, as here. A class that a client lacks counts as 1e-8 samples, a shift of 100.

    Args:
        strength: Weight of the shift, the paper's tau.
        kwargs: Options of the bases.
    """

    needs = ("classes", "features")

    def __init__(self, strength: NonNegativeFloat = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strength = strength

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train on shifted outputs."""
        counts = cohort.class_counts(self.task.classes).to(self.engine.dtype)
        shift = self.strength * counts.clamp(min=ABSENT) ** -0.25
        phase = replace(self.phase("all"), feature_loss=self.shifted_losses)
        return self.engine.train(cohort, received.with_own({SHIFT: shift}), phase, (*key, "all"))

    def shifted_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        shift = extras[SHIFT]
        return self.sample_losses(outputs - (shift if outputs.shape[-1] > 1 else shift.diff()), targets)
