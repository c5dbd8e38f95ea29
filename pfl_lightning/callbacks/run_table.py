import warnings
from typing import Any

import lightning.pytorch as pl

from pfl_lightning.callbacks.evaluation import is_extra
from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.callbacks.run_folder import continues


class RunTable(pl.Callback):
    """Keeps a table of a run in step with its checkpoints.

    A checkpoint is only saved when the rows of its rounds are on disk. A run that resumes continues the table from the
    checkpoint's round, without an evaluation that a longer run does not have.

    Attributes:
        file: Name of the file.
        csv: The table; None where none is written.
    """

    file: str
    csv: RoundCsv | None = None
    last_saved: int | None = None  # the last round of the table when the checkpoint was saved

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Learn where the table ended when the checkpoint was saved."""
        self.last_saved = checkpoint.get("tables", {}).get(self.file)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Continue the table of a run that resumes; all processes ask together whether it does."""
        if continues(trainer) and self.csv is not None and trainer.is_global_zero:
            self.continue_table(trainer, self.csv)

    def continue_table(self, trainer: pl.Trainer, table: RoundCsv) -> None:
        """Cut the table at the checkpoint's round."""
        table.cut(trainer.global_step)
        last = None if is_extra(trainer) else self.last_saved  # an extra row may be gone since
        if last is not None and (table.round is None or table.round < last):
            ends = "is empty" if table.round is None else f"ends with round {table.round}"
            warnings.warn(f"'{table.path}' {ends}, but had round {last} when the checkpoint was saved", stacklevel=2)
        if is_extra(trainer):
            table.cut(trainer.global_step - 1)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Have the table on disk before the checkpoint."""
        if self.csv is not None and trainer.is_global_zero:
            self.csv.sync()
            checkpoint.setdefault("tables", {})[self.file] = self.csv.round
