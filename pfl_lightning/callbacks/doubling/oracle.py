from math import sqrt
from typing import Any

import lightning.pytorch as pl

from pfl_lightning.bounds import PositiveFloat, PositiveInt
from pfl_lightning.callbacks.doubling.stages import Doubling
from pfl_lightning.data import Round, federated
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method

DISTANCE = "train/distance"


class OracleDoubling(Doubling):
    """Stage doubling by an oracle: a stage ends when the representation is close to the stage's noise floor.

    Stage r has the fastest n = min(pool, 2^r n0) clients of the pool. It ends after a round with ``train/distance`` at
    most ``leave * floor(n)``, and the run ends when the distance is at most ``stop * floor(pool)``, with
    ``floor(n) = floor / sqrt(n)``. For FedRep under the same rule, set ``n0`` to the size of the pool. This only works
    in simulations, since clients do not know the true representation. The rule is ours, based on the theory of SRPFL
    (Tziotis et al., Straggler-Resilient Personalized Federated Learning, TMLR 2023, arXiv:2206.02078); see
    docs/evidence/derivations.md.

    Args:
        n0: Participants in the first stage.
        floor: Noise floor: the final distance with a single participant, as measured; proportional to the noise.
        leave: A stage ends at this multiple of its floor.
        stop: The run ends at this multiple of the pool's floor.
    """

    def __init__(
        self, n0: PositiveInt, floor: PositiveFloat, leave: PositiveFloat = 1.3, stop: PositiveFloat = 1.25
    ) -> None:
        super().__init__(n0)
        self.floor = floor
        self.leave = leave
        self.stop = stop
        self.arrived = False

    def state_dict(self) -> dict[str, Any]:
        """The stage, and whether the run has ended."""
        return {"stage": self.stage, "arrived": self.arrived}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the stage, and whether the run has ended."""
        self.stage = state_dict["stage"]
        self.arrived = state_dict["arrived"]

    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """Begin with the first stage, or continue with the checkpoint's.

        Raises:
            PflError: If the resumed run has already reached its target.
        """
        if trainer.global_step == 0:  # an earlier run may have used this object
            self.stage = 0
            self.arrived = False
        if self.arrived:
            raise PflError(f"ckpt_path: the run reached its target in round {trainer.global_step}; start a new run")

    def after_round(self, trainer: pl.Trainer, method: Method, batch: Round) -> None:
        """Check the distance after a round: go to the next stage, or stop.

        Raises:
            PflError: If the method logs no distance.
        """
        if DISTANCE not in trainer.callback_metrics:
            raise PflError(f"OracleDoubling needs {DISTANCE}, which LinearFedRep logs on LinearRepresentation")
        distance = float(trainer.callback_metrics[DISTANCE])
        data = federated(trainer)
        pool = data.participation.pool_size or data.training_clients
        if distance <= self.stop * self.floor / sqrt(pool):
            self.arrived = trainer.should_stop = True
        if self.cohort_size < pool and distance <= self.leave * self.floor / sqrt(self.cohort_size):
            self.stage += 1
