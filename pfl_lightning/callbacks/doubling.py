"""Stage doubling: trains with the fastest clients first, and doubles their number from stage to stage."""

import warnings
from abc import ABC, abstractmethod
from math import sqrt
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl

from pfl_lightning.bounds import PositiveFloat, PositiveInt
from pfl_lightning.callbacks.evaluation import callbacks_of
from pfl_lightning.data import Round, federated
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method, method_of
from pfl_lightning.server import DPAggregator
from pfl_lightning.system import Asynchronous

Unit = Literal["clients", "samples"]
DISTANCE = "train/distance"


class Doubling(pl.Callback, ABC):
    """Trains with the fastest ``n0`` clients of the pool first, and doubles their number from stage to stage.

    Stage r has min(pool, 2^r n0) participants; the last stage never ends. A subclass decides when a stage ends.

    Args:
        n0: Participants in the first stage.
        double_by: What doubles: the number of ``clients``, or, for imbalanced data, of ``samples``. With ``samples``,
            stage r has the fastest clients that together hold 2^r n0 times the mean number of training samples.

    Attributes:
        saved: The attributes that a checkpoint has, with their values in a new run.
        stage: Number of the stage, from 0.
    """

    saved: ClassVar[dict[str, Any]] = {}

    def __init__(self, n0: int, double_by: Unit = "clients") -> None:
        self.n0 = n0
        self.double_by = double_by
        self.stage = 0

    def state_dict(self) -> dict[str, Any]:
        """The saved attributes."""
        return {name: getattr(self, name) for name in self.saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the saved attributes."""
        vars(self).update(state_dict)

    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """Set the stage of the first round of this run, which may resume another.

        By default a new run resets the saved attributes, since an earlier run may have used this object.
        """
        if trainer.global_step == 0:
            self.load_state_dict(self.saved)

    @abstractmethod
    def after_round(self, trainer: pl.Trainer, method: Method, batch: Round) -> None:
        """Set the stage of the next round, after a round."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that nothing else chooses the size of the cohort.

        Raises:
            PflError: If another such callback does.
        """
        names = [type(c).__name__ for c in callbacks_of(trainer, pl.Callback) if isinstance(c, Doubling)]
        if len(names) > 1:
            raise PflError(f"trainer.callbacks: {' and '.join(names)} exclude each other; use one of them")
        if isinstance(method_of(pl_module).aggregator, DPAggregator):
            raise PflError(
                f"trainer.callbacks: {names[0]} does not work with DPAggregator, whose budget assumes clients "
                "drawn at random; remove one of them"
            )
        if isinstance(federated(trainer).participation, Asynchronous):
            raise PflError(
                f"trainer.callbacks: {names[0]} does not work with Asynchronous, which has no rounds; remove it, or "
                "set data.participation to Participation"
            )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the cohort size of this run's first round."""
        self.begin(trainer, method_of(pl_module))
        self._resize(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Round, batch_idx: int
    ) -> None:
        """Set the cohort size of the next round."""
        self.after_round(trainer, method_of(pl_module), batch)
        self._resize(trainer)

    def on_fit_end(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Restore the whole pool for other runs on the same data, also after a run that ended early."""
        federated(trainer).participation.resize()

    on_exception = on_fit_end

    @property
    def cohort_size(self) -> int:
        """Number of participants if the pool were unlimited."""
        return self.n0 << min(self.stage, 40)  # more than any population, and small enough for a float

    def _resize(self, trainer: pl.Trainer) -> None:
        data = federated(trainer)
        if self.double_by == "clients":
            data.participation.resize(self.cohort_size)
        else:
            data.participation.resize(cohort_samples=self.cohort_size * data.training_counts.mean())


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
            raise PflError("StageDoubling.rounds_per_stage must be one number or several, got []")
        self.rounds_per_stage = rounds_per_stage

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check that nothing else chooses the size of the cohort, and warn if the first stage leaves nobody out."""
        super().setup(trainer, pl_module, stage)
        data = federated(trainer)
        pool = data.participation.pool_size or data.training_clients
        if stage == "fit" and self.n0 >= pool:
            warnings.warn(
                f"trainer.callbacks: StageDoubling doubles nothing, since all {pool} clients of the pool take part "
                f"from the first round on; set n0 below {pool}, got {self.n0}",
                stacklevel=2,
            )

    def stage_of(self, round_index: int) -> int:
        """Stage of the round with this index."""
        lengths = [self.rounds_per_stage] if isinstance(self.rounds_per_stage, int) else self.rounds_per_stage
        stage = end = 0
        while round_index >= (end := end + lengths[min(stage, len(lengths) - 1)]):
            stage += 1
        return stage

    def begin(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        """Set the stage by the rounds completed."""
        self.stage = self.stage_of(trainer.global_step)

    after_round = begin


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

    saved: ClassVar[dict[str, Any]] = {"stage": 0, "arrived": False}
    arrived: bool

    def __init__(
        self, n0: PositiveInt, floor: PositiveFloat, leave: PositiveFloat = 1.3, stop: PositiveFloat = 1.25
    ) -> None:
        super().__init__(n0)
        self.floor = floor
        self.leave = leave
        self.stop = stop

    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """Begin with the first stage, or continue with that of the checkpoint.

        Raises:
            PflError: If the resumed run has already reached its target.
        """
        super().begin(trainer, method)
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
