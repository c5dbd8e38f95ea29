from typing import Any

import lightning.pytorch as pl
from jsonargparse.typing import PositiveInt

from pfl_lightning.callbacks.doubling import Doubling, Unit
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.server import client_weights
from pfl_lightning.tree import Tree, add_to, mix


class GradientDoubling(Doubling):
    """Stage doubling by the statistical accuracy of the stage, as in FLANP.

    The stage r has min(pool, 2^r n0) participants, the fastest ones of the pool. The first stage ends after
    ``rounds_per_stage`` rounds; |g|^2 is then the threshold, with g the gradient of the participants' mean loss by the
    shared tensors, and it is halved at each doubling. A later stage ends when |g|^2 is below the threshold, or after
    ``rounds_per_stage`` rounds.

    Paper: Reisizadeh et al., Straggler-Resilient Federated Learning, 2020, arXiv:2012.14453.
    Differs: FLANP's threshold is 2 mu c / (n s) with constants that nobody knows; this is its authors' own practice.
    Its solver is FedGATE, here it is the method's.

    Args:
        n0: Participants in the first stage.
        rounds_per_stage: Length of the first stage, and the greatest length of the others.
        double_by: See ``StageDoubling``.
    """

    def __init__(self, n0: PositiveInt = 10, rounds_per_stage: PositiveInt = 20, double_by: Unit = "clients") -> None:
        super().__init__(n0, double_by)
        self.rounds_per_stage, self.rounds = rounds_per_stage, 0
        self.threshold = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The stage, its rounds so far, and the threshold that ends it."""
        return {"stage": self.stage, "rounds": self.rounds, "threshold": self.threshold}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them."""
        self.stage, self.rounds = state_dict["stage"], state_dict["rounds"]
        self.threshold = state_dict["threshold"]

    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """Begin with the first stage, or go on with that of the checkpoint.

        Raises:
            PflError: If the method shares nothing, so that there is no gradient to go by.
        """
        if not method.shared & method.engine.trainable:
            name = type(method).__name__
            raise PflError(f"GradientDoubling: not possible with {name}, which shares nothing; allowed: StageDoubling")
        if trainer.global_step == 0:
            self.stage, self.rounds, self.threshold = 0, 0, 0.0  # an earlier run may have used this object

    def behind_round(self, trainer: pl.Trainer, method: Method, batch: Round) -> None:
        """Measure the gradient, and end the stage or not."""
        square = squared_gradient_norm(method, batch)
        method.log("train/squared_gradient_norm", square)
        self.rounds += 1
        if self.rounds < self.rounds_per_stage and square >= self.threshold:
            return
        self.threshold = (square if self.stage == 0 else self.threshold) / 2
        self.stage, self.rounds = self.stage + 1, 0


def squared_gradient_norm(method: Method, batch: Round) -> float:
    """|g|^2 of the weighted mean loss of a round's participants, on all their samples, at the shared tensors."""
    names = method.shared & method.engine.trainable
    weights = client_weights(batch.examples.counts, method.weighting).to(method.device)

    def work(start: int, cohort: Examples) -> Tree:
        gradient = method.engine.gradient(cohort, method.received(cohort.ids), names)
        return mix(weights[start : start + len(cohort)].to(next(iter(gradient.values())).dtype), gradient)

    mean: Tree = {}
    for share in method.chunks.map(work, batch.examples):
        add_to(mean, share)
    return float(sum(gradient.square().sum() for gradient in mean.values()))
