from typing import Any

import lightning.pytorch as pl
import torch

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.callbacks.gradient_doubling import weighted_sum
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method, method_of
from pfl_lightning.tree import Params, Tree, select

HEADS = "heads"  # their squared norm, beside the gradients of the body


class GradientNorm(pl.Callback):
    """Measures how near clients with personal heads are to a stationary point, at each evaluation while training.

    ``train/gradient_norm`` is, with the participants' weights w_i, their heads h_i, and the mean b of all bodies b_i:

        |sum_i w_i grad_b f_i(b, h_i)|^2
            + head_weight * sum_i w_i |grad_h f_i(b, h_i)|^2 + mean_i |b_i - b|^2

    with f_i the mean loss of all training samples of client i. This takes one pass over them. The last term is 0 with a
    server, which has a single body.

    Paper: Xiong et al., DePRL: Achieving Linear Convergence Speedup in Personalized Decentralized Learning with Shared
    Representations, AAAI 2024, arXiv:2312.10815, equations (8) to (10).

    Differs: the paper's ``head_weight`` follows from its rates and steps, and its gradient of the heads is that of the
    heads before the round.

    Args:
        head_weight: Weight of the gradient of the heads.
    """

    def __init__(self, head_weight: NonNegativeFloat = 1.0) -> None:
        self.head_weight = head_weight
        self._batch: Round | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that heads are personal, and bodies are not.

        Raises:
            PflError: If there is no body that clients learn together, or heads are averaged.
        """
        method = method_of(pl_module)
        head, body = (method.parts[part] & method.engine.trainable for part in ("head", "body"))
        averaged = (method.shared | method.parts[method.mixes]) & method.engine.trainable
        if not method.uploads_models or not body or averaged != body or not head:
            raise PflError(
                f"trainer.callbacks: GradientNorm is not possible with {type(method).__name__}; allowed: a method that "
                "averages bodies alone, such as DePRL and FedRep"
            )
        self._batch = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Round, batch_idx: int
    ) -> None:
        """Remember who took part."""
        self._batch = batch

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure after the last round."""
        if self._batch is not None:
            method = method_of(pl_module)
            method.log("train/gradient_norm", stationarity(method, self._batch, self.head_weight))


@torch.inference_mode(False)
@torch.enable_grad()
def stationarity(method: Method, batch: Round, head_weight: float) -> float:
    """What ``GradientNorm`` logs after a round."""
    head, body = (method.parts[part] & method.engine.trainable for part in ("head", "body"))
    common = method.common_body()

    def gradients(cohort: Examples) -> Tree:
        heads = select(method.clients.gather(cohort.ids), method.parts["head"])
        found = method.engine.gradient(cohort, Params(common, heads), head | body)
        squares = [found[name].square().reshape(len(cohort), -1).sum(1) for name in head]
        return {**select(found, body), HEADS: torch.stack(squares).sum(0)}

    mean = weighted_sum(method, batch, gradients)
    heads = float(mean.pop(HEADS))
    apart = float(method.clients.spread(body)) if body <= method.kept else 0.0
    return float(sum(gradient.square().sum() for gradient in mean.values())) + head_weight * heads + apart
