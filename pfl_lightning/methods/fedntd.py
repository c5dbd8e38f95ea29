from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.bounds import NonNegativeFloat, PositiveFloat
from pfl_lightning.client import Examples
from pfl_lightning.client.layers import part
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree

GLOBAL = "global"  # prefix of the received model


class FedNTD(FineTuned, Averaging):
    """FedAvg whose clients keep the received model's opinion on all classes but the true one.

    Rule of a round; q and q_g are the softmax of outputs / temperature over all classes but y, the true one, by the
    model that trains and by the received one:

        loss = cross-entropy + strength * temperature^2 * KL(q_g || q)
        w_i  = SGD for epochs on the mean of this loss over the samples of client i, from w
        w    = w - server_lr * (w - sum_i weight_i * w_i)

    So clients do not forget the classes that they lack. With ``strength`` 0, or two classes, it is FedAvg.

    Paper: Lee, Jeong, Shin, Bae, Yun, Preservation of the Global Knowledge by Not-True Distillation in Federated
    Learning, NeurIPS 2022, arXiv:2106.03097, eq. (3) to (5).

    Args:
        strength: Weight of the term, the paper's beta.
        temperature: The paper's tau.
        kwargs: Options of the bases.
    """

    needs = ("classes", "features")

    def __init__(self, strength: NonNegativeFloat = 1.0, temperature: PositiveFloat = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.strength = strength
        self.temperature = temperature

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train with the term, beside the received model."""
        phase = replace(self.phase("all"), feature_loss=self.distilling_losses, frozen_models=(GLOBAL,))
        return self.engine.train(cohort, received.beside(GLOBAL, received), phase, (*key, "all"))

    def distilling_losses(self, outputs: Tensor, features: Tensor, targets: Tensor, extras: Tree) -> Tensor:
        """The loss of each sample of a client, ``[batch]``; see ``Phase.feature_loss``."""
        losses: Tensor = self.sample_losses(outputs, targets)
        if outputs.shape[-1] == 1:  # one class beside the true one
            return losses
        names = {name: f"{GLOBAL}.{name}" for name in self.parts["head"]}
        head = {name: extras[key] for name, key in names.items()}
        received = functional_call(part(self.network, self.engine.body_layers()), head, extras[GLOBAL])
        logs, global_logs = (self.not_true(logits, targets) for logits in (outputs, received))
        divergence = (global_logs.exp() * (global_logs - logs)).sum(1)
        term: Tensor = extras["amounts"] * self.strength * self.temperature**2 * divergence
        return losses + term

    def not_true(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Log-probabilities of all classes but the true ones, ``[batch, classes]``; 0 for these."""
        is_true = F.one_hot(targets, logits.shape[1]).bool()
        logs: Tensor = (logits / self.temperature).masked_fill(is_true, -torch.inf).log_softmax(1)
        return logs.masked_fill(is_true, 0.0)
