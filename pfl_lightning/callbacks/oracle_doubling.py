from math import sqrt
from typing import Any

import lightning.pytorch as pl
from jsonargparse.typing import PositiveFloat, PositiveInt

from pfl_lightning.callbacks.doubling import Doubling
from pfl_lightning.data import Round, federated
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method

DISTANCE = "train/distance"


class OracleDoubling(Doubling):
    """Stage doubling by an oracle: a stage ends when the representation is near the floor of its noise.

    The stage r has n = min(pool, 2^r n0) participants, the fastest ones of the pool. A round's participants double
    behind a round whose ``train/distance`` is at most ``leave * floor(n)``, and the run ends when it is at most
    ``stop * floor(pool)``, with ``floor(n) = floor / sqrt(n)``. FedRep under the same rule has the pool as ``n0``. Only
    simulations can do this: clients do not know the true representation. The rule is ours, after the theory of SRPFL
    (Tziotis et al., Straggler-Resilient Personalized Federated Learning, TMLR 2023, arXiv:2206.02078); see
    docs/derivations.md.

    Args:
        n0: Participants in the first stage.
        floor: The distance at which one participant would end up; measured, and proportional to the noise.
        leave: A stage ends at this multiple of its floor.
        stop: The run ends at this multiple of the pool's floor.
    """

    def __init__(
        self, n0: PositiveInt, floor: PositiveFloat, leave: PositiveFloat = 1.3, stop: PositiveFloat = 1.25
    ) -> None:
        super().__init__(n0)
        self.floor, self.leave, self.stop = floor, leave, stop
        self.arrived = False

    def state_dict(self) -> dict[str, Any]:
        """The stage, and whether the run has ended."""
        return {"stage": self.stage, "arrived": self.arrived}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the stage, and whether the run has ended."""
        self.stage, self.arrived = state_dict["stage"], state_dict["arrived"]

    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """Begin with the first stage, or go on with that of the checkpoint.

        Raises:
            PflError: If the run that is resumed has ended already.
        """
        if trainer.global_step == 0:
            self.stage, self.arrived = 0, False  # an earlier run may have used this object
        if self.arrived:
            raise PflError(f"ckpt_path: the run has arrived after {trainer.global_step} rounds; allowed: another")

    def behind_round(self, trainer: pl.Trainer, method: Method, batch: Round) -> None:
        """Judge the round: go to the next stage, or stop.

        Raises:
            PflError: If the method logs no distance.
        """
        if DISTANCE not in trainer.callback_metrics:
            raise PflError(f"OracleDoubling: {DISTANCE} is not logged; allowed: LinearFedRep on LinearRepresentation")
        distance, data = float(trainer.callback_metrics[DISTANCE]), federated(trainer)
        pool = data.participation.pool_size or data.training_clients
        if distance <= self.stop * self.floor / sqrt(pool):
            self.arrived = trainer.should_stop = True
        if self.cohort_size < pool and distance <= self.leave * self.floor / sqrt(self.cohort_size):
            self.stage += 1
