from typing import Any

import lightning.pytorch as pl
from jsonargparse.typing import PositiveInt

from pfl_lightning.errors import PflError


class StageDoubling(pl.Callback):
    """Lets the fastest ``n0`` clients of the pool train first, and doubles their number stage by stage.

    This makes FedRep into FedRep-SRPFL and FedAvg into FLANP (SRPFL, Algorithm 1 and section 3): the stage r has
    min(pool, 2^r n0) participants; the last stage goes on for ever.

    Args:
        n0: Participants in the first stage.
        rounds_per_stage: Length of every stage, or of each of the first ones (the last number repeats).

    Raises:
        PflError: If there is no length at all.
    """

    def __init__(self, n0: PositiveInt = 10, rounds_per_stage: PositiveInt | list[PositiveInt] = 10) -> None:
        if rounds_per_stage == []:
            raise PflError("StageDoubling.rounds_per_stage: [] is not possible; allowed: a number, or some numbers")
        self.n0 = n0
        self.rounds_per_stage = [rounds_per_stage] if isinstance(rounds_per_stage, int) else rounds_per_stage

    def cohort_size(self, round_index: int) -> int:
        """Participants of the round with this index, were the pool unlimited; the schedule is a pure function."""
        stage, end = 0, 0
        while round_index >= (end := end + self.rounds_per_stage[min(stage, len(self.rounds_per_stage) - 1)]):
            stage += 1
        return self.n0 << stage

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the size of the first round of this run, which may be a resumed one."""
        self._resize(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Set the size of the next round."""
        self._resize(trainer)

    def _resize(self, trainer: pl.Trainer) -> None:
        trainer.datamodule.participation.resize(self.cohort_size(trainer.global_step))  # type: ignore[attr-defined]
