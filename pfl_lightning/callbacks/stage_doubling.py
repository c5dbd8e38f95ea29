from typing import Any, Literal

import lightning.pytorch as pl
from jsonargparse.typing import PositiveInt

from pfl_lightning.errors import PflError

Unit = Literal["clients", "samples"]


class StageDoubling(pl.Callback):
    """Lets the fastest ``n0`` clients of the pool train first, and doubles their number stage by stage.

    This makes FedRep into FedRep-SRPFL and FedAvg into FLANP (SRPFL, Algorithm 1 and section 3): the stage r has
    min(pool, 2^r n0) participants; the last stage goes on for ever.

    Args:
        n0: Participants in the first stage.
        rounds_per_stage: Length of every stage, or of each of the first ones (the last number repeats).
        double_by: ``clients``, or ``samples`` for imbalanced data (SRPFL, section 2.5): then the stage r has as many of
            the fastest clients as hold 2^r n0 times the mean number of training samples.

    Raises:
        PflError: If there is no length at all.
    """

    def __init__(
        self,
        n0: PositiveInt = 10,
        rounds_per_stage: PositiveInt | list[PositiveInt] = 10,
        double_by: Unit = "clients",
    ) -> None:
        if rounds_per_stage == []:
            raise PflError("StageDoubling.rounds_per_stage: [] is not possible; allowed: a number, or some numbers")
        self.n0, self.double_by = n0, double_by
        self.rounds_per_stage = [rounds_per_stage] if isinstance(rounds_per_stage, int) else rounds_per_stage

    def cohort_size(self, round_index: int) -> int:
        """Participants of the round with this index, were the pool unlimited; the schedule is a pure function."""
        stage, end = 0, 0
        while round_index >= (end := end + self.rounds_per_stage[min(stage, len(self.rounds_per_stage) - 1)]):
            stage += 1
        return self.n0 << stage

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the size of the first round of this run, which may be a resumed one."""
        resize(trainer, self.cohort_size(trainer.global_step), self.double_by)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Set the size of the next round."""
        resize(trainer, self.cohort_size(trainer.global_step), self.double_by)


def resize(trainer: pl.Trainer, clients: int, double_by: Unit = "clients") -> None:
    """Let the fastest clients take part from now on: so many, or as hold the samples of so many mean ones."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    if double_by == "clients":
        data.participation.resize(clients)
    else:
        data.participation.resize(cohort_samples=clients * data.training_counts.mean())
