from abc import ABC, abstractmethod
from typing import Any, Literal

import lightning.pytorch as pl

from pfl_lightning.data import Round, federated
from pfl_lightning.methods import Method, method_of
from pfl_lightning.settings import is_doubling

Unit = Literal["clients", "samples"]


class Doubling(pl.Callback, ABC):
    """Lets the fastest ``n0`` clients of the pool train first, and doubles their number stage by stage.

    The stage r has min(pool, 2^r n0) participants; the last stage goes on for ever. A subclass says when a stage ends.
    Its name ends in ``Doubling``: by that a resumed run and a comparison of runs recognise it.

    Args:
        n0: Participants in the first stage.
        double_by: ``clients``, or ``samples`` for imbalanced data: then the stage r has as many of the fastest clients
            as hold 2^r n0 times the mean number of training samples.

    Attributes:
        stage: Number of the stage; 0 is the first.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not is_doubling(cls.__name__):
            raise TypeError(f"{cls.__name__}: the name of a stage doubling ends in Doubling")

    def __init__(self, n0: int, double_by: Unit = "clients") -> None:
        self.n0, self.double_by, self.stage = n0, double_by, 0

    @abstractmethod
    def begin(self, trainer: pl.Trainer, method: Method) -> None:
        """Set the stage of the first round of this run, which may be a resumed one."""

    @abstractmethod
    def behind_round(self, trainer: pl.Trainer, method: Method, batch: Round) -> None:
        """Set the stage of the next round."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let the clients of the first round of this run take part."""
        self.begin(trainer, method_of(pl_module))
        self._resize(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Round, batch_idx: int
    ) -> None:
        """Let the clients of the next round take part."""
        self.behind_round(trainer, method_of(pl_module), batch)
        self._resize(trainer)

    @property
    def cohort_size(self) -> int:
        """Participants of a round, were the pool unlimited."""
        return self.n0 << self.stage

    def _resize(self, trainer: pl.Trainer) -> None:
        data = federated(trainer)
        if self.double_by == "clients":
            data.participation.resize(self.cohort_size)
        else:
            data.participation.resize(cohort_samples=self.cohort_size * data.training_counts.mean())
