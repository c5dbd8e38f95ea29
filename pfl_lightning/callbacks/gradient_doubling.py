from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
from jsonargparse.typing import PositiveInt

from pfl_lightning.callbacks.stage_doubling import Unit, resize
from pfl_lightning.client import Examples
from pfl_lightning.data import Round
from pfl_lightning.methods import Method
from pfl_lightning.server import client_weights
from pfl_lightning.tree import Tree, add_to, mix, select


class GradientDoubling(pl.Callback):
    """Stage doubling by the statistical accuracy (Reisizadeh et al. 2022, FLANP; SRPFL, section 2.7).

    The stage r has min(pool, 2^r n0) participants, the fastest ones of the pool. The first stage ends after
    ``rounds_per_stage`` rounds; |g|^2 is then the threshold, with g the gradient of the participants' mean loss by the
    shared tensors, and it is halved at each doubling. A later stage ends when |g|^2 is below the threshold, or after
    ``rounds_per_stage`` rounds.

    Differs: FLANP's threshold is 2 mu c / (n s) with constants that nobody knows; this is its authors' own practice.
    Its solver is FedGATE, here it is the method's.

    Args:
        n0: Participants in the first stage.
        rounds_per_stage: Length of the first stage, and the greatest length of the others.
        double_by: See ``StageDoubling``.
    """

    def __init__(self, n0: PositiveInt = 10, rounds_per_stage: PositiveInt = 20, double_by: Unit = "clients") -> None:
        self.n0, self.rounds_per_stage, self.double_by = n0, rounds_per_stage, double_by
        self.stage = self.rounds = 0
        self.threshold = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The stage, its rounds so far, and the threshold that ends it."""
        return {"stage": self.stage, "rounds": self.rounds, "threshold": self.threshold}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them."""
        self.stage, self.rounds = state_dict["stage"], state_dict["rounds"]
        self.threshold = state_dict["threshold"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the size of the first round of this run, which may be a resumed one."""
        if trainer.global_step == 0:
            self.stage, self.rounds, self.threshold = 0, 0, 0.0  # an earlier run may have used this object
        resize(trainer, self.n0 << self.stage, self.double_by)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Round, batch_idx: int
    ) -> None:
        """Measure the gradient, and set the size of the next round."""
        assert isinstance(pl_module, Method)
        square = squared_gradient_norm(pl_module, batch)
        pl_module.log("train/squared_gradient_norm", square)
        self.rounds += 1
        if self.rounds < self.rounds_per_stage and square >= self.threshold:
            return
        self.threshold = (square if self.stage == 0 else self.threshold) / 2
        self.stage, self.rounds = self.stage + 1, 0
        resize(trainer, self.n0 << self.stage, self.double_by)


def squared_gradient_norm(method: Method, batch: Round) -> float:
    """|g|^2 of the weighted mean loss of a round's participants, on all their samples, at the shared tensors."""
    weights = client_weights(batch.examples.counts, method.weighting).to(method.device)
    phase = replace(method.phase("all", 1), batch_size=batch.examples.longest, lr=1.0, momentum=0.0, weight_decay=0.0)
    key = (batch.seed, "gradient", batch.round_index)
    names = method.shared & method.engine.trainable

    def work(start: int, cohort: Examples) -> Tree:
        trained, _ = method.engine.train(cohort, method.received(cohort.ids), phase, key)
        return mix(weights[start : start + len(cohort)], select(trained.own, names))

    means: Tree = {}
    for share in method.chunks.map(work, batch.examples):
        add_to(means, share)
    shared = method.network.state_dict()  # one step of rate 1 goes from here against the gradient
    return float(sum((shared[name] - mean).square().sum() for name, mean in means.items()))
