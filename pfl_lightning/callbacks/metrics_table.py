from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from pfl_lightning.callbacks.board import tensorboards
from pfl_lightning.callbacks.evaluation import is_extra
from pfl_lightning.callbacks.round_csv import RoundCsv, RunTable
from pfl_lightning.report.run_files import METRICS


class MetricsTable(Logger, RunTable):
    """Writes every logged scalar to ``metrics.csv``, one line per round.

    As a logger it is told what to write. Give it to the trainer as a callback too: then a checkpoint is only saved when
    the lines of its rounds are on disk, and a run that resumes continues the table from its checkpoint's round.

    Args:
        folder: The run's folder. Default: given later, by ``open``.
    """

    file = METRICS
    csv: RoundCsv

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        if folder:
            self.open(folder)
        self.row: dict[str, float] = {}
        self.unevaluated_row: dict[str, float] = {}  # what a run that does not evaluate this round logs of it

    def open(self, folder: Path) -> None:
        """Start, or continue, the table in a folder."""
        self.folder = folder
        self.csv = RoundCsv(folder / self.file, first=("time/compute", "time/total", "train/loss", "system/cohort"))

    # The logger

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.parent.name

    @property
    def version(self) -> str:
        """Version of the run."""
        return self.folder.name

    @property
    def save_dir(self) -> str:
        """The folder above that of the run's name."""
        return str(self.folder.parent.parent)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write the scalars of a round; those of an evaluation are added to the line of the round before it."""
        assert step is not None
        if step != self.csv.round:
            self.row = {}
        self.row |= {name: value for name, value in metrics.items() if name != "epoch"}
        self.csv.write(step, [self.row])

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: hyperparameters are in ``config.yaml``."""

    # The callback

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Learn what the table held when the checkpoint was saved."""
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        self.unevaluated_row = checkpoint.get("trained", {})

    def continue_table(self, trainer: pl.Trainer, table: RoundCsv) -> None:
        """Continue the table, without an evaluation that a longer run does not have."""
        super().continue_table(trainer, table)
        self.row = table.numbers()  # callbacks may add to them, as LearningRateMonitor does
        if is_extra(trainer) and self.unevaluated_row:  # TensorBoard has dropped them with the evaluation
            boards = [board for board in tensorboards(trainer) if Path(board.log_dir) == self.folder]
            for logger in (self, *boards):
                logger.log_metrics(self.unevaluated_row, trainer.global_step)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store what a run logs of this round that does not evaluate it."""
        self.unevaluated_row = {}
        if self.csv.round == trainer.global_step and is_logged(trainer):
            self.unevaluated_row |= self.row

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Complete the table on disk before the checkpoint is: Lightning logs a round only after its last hook."""
        if trainer.training and is_logged(trainer):
            # Lightning has no public way to ask for this round's values: ``logged_metrics`` keeps those of earlier ones
            values = {name: float(value) for name, value in trainer._logger_connector.metrics["log"].items()}
            self.log_metrics(values, int(values.pop("step")))
        checkpoint["trained"] = self.unevaluated_row
        super().on_save_checkpoint(trainer, pl_module, checkpoint)


def is_logged(trainer: pl.Trainer) -> bool:
    """Whether the current round is logged, evaluated or not."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return interval > 0 and trainer.global_step % interval == 0
