import lightning.pytorch as pl
from jsonargparse.typing import PositiveInt

from pfl_lightning.callbacks.doubling import Doubling, Unit
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method


class StageDoubling(Doubling):
    """Lets the fastest ``n0`` clients of the pool train first, and doubles their number after fixed numbers of rounds.

    This makes FedRep into FedRep-SRPFL and FedAvg into FLANP: the stage r has min(pool, 2^r n0) participants; the last
    stage goes on for ever.

    Paper: Tziotis et al., Straggler-Resilient Personalized Federated Learning, 2023, arXiv:2206.02078, Algorithm 1.

    Args:
        n0: Participants in the first stage.
        rounds_per_stage: Length of every stage, or of each of the first ones (the last number repeats).
        double_by: ``clients``, or ``samples`` for imbalanced data: then the stage r has as many of the fastest clients
            as hold 2^r n0 times the mean number of training samples.

    Raises:
        PflError: If there is no length at all.
    """

    def __init__(
        self,
        n0: PositiveInt = 10,
        rounds_per_stage: PositiveInt | list[PositiveInt] = 10,
        double_by: Unit = "clients",
    ) -> None:
        super().__init__(n0, double_by)
        if rounds_per_stage == []:
            raise PflError("StageDoubling.rounds_per_stage: [] is not possible; allowed: a number, or some numbers")
        self.rounds_per_stage = [rounds_per_stage] if isinstance(rounds_per_stage, int) else rounds_per_stage

    def stage_of(self, round_index: int) -> int:
        """The stage of the round with this index; the schedule is a pure function."""
        stage, end = 0, 0
        while round_index >= (end := end + self.rounds_per_stage[min(stage, len(self.rounds_per_stage) - 1)]):
            stage += 1
        return stage

    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """The stage follows from the rounds completed."""
        self.stage = self.stage_of(trainer.global_step)

    def behind_round(self, trainer: pl.Trainer, method: Method, batch: Round) -> None:
        """The stage follows from the rounds completed."""
        self.stage = self.stage_of(trainer.global_step)
