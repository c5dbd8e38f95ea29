import lightning.pytorch as pl

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.callbacks.doubling.base import Doubling, Unit
from pfl_lightning.data import Round
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method


class StageDoubling(Doubling):
    """Trains with the fastest ``n0`` clients of the pool first, and doubles their number every few rounds.

    With this callback FedRep becomes FedRep-SRPFL, and FedAvg becomes FLANP. Stage r has min(pool, 2^r n0)
    participants; the last stage never ends.

    Paper: Tziotis et al., Straggler-Resilient Personalized Federated Learning, 2023, arXiv:2206.02078, Algorithm 1.

    Args:
        n0: Participants in the first stage.
        rounds_per_stage: Rounds in every stage, or a list with one number per stage (the last number repeats).
        double_by: What doubles: the number of ``clients``, or, for imbalanced data, of ``samples``. With ``samples``,
            stage r has the fastest clients that together hold 2^r n0 times the mean number of training samples.

    Raises:
        PflError: If the list is empty.
    """

    def __init__(
        self,
        n0: PositiveInt = 10,
        rounds_per_stage: PositiveInt | list[PositiveInt] = 10,
        double_by: Unit = "clients",
    ) -> None:
        super().__init__(n0, double_by)
        if rounds_per_stage == []:
            raise PflError("StageDoubling.rounds_per_stage: [] is not possible; allowed: one number, or several")
        self.rounds_per_stage = rounds_per_stage

    def stage_of(self, round_index: int) -> int:
        """Stage of the round with this index."""
        lengths = [self.rounds_per_stage] if isinstance(self.rounds_per_stage, int) else self.rounds_per_stage
        stage, end = 0, 0
        while round_index >= (end := end + lengths[min(stage, len(lengths) - 1)]):
            stage += 1
        return stage

    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """Set the stage by the rounds completed."""
        self.stage = self.stage_of(trainer.global_step)

    def after_round(self, trainer: pl.Trainer, method: Method, batch: Round) -> None:
        """Set the stage by the rounds completed."""
        self.stage = self.stage_of(trainer.global_step)
