import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from rich.console import Console

from pfl_lightning import files
from pfl_lightning.callbacks.percentile_errors import add_columns, client_rows
from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.data import federated
from pfl_lightning.methods import method_of

TEST, VALIDATE, NEW_CLIENTS = "test.csv", "validate.csv", "new_clients.csv"


class EvaluationTable(pl.Callback):
    """Writes what each client got in ``pfl test`` or ``pfl validate`` into the run's folder.

    The columns are those of ``clients.csv``. ``validate.csv`` has the validation samples and ``test.csv`` the others;
    clients that are new to the run are in ``new_clients.csv``.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the clients' results before the module resets its metrics."""
        self.rows, method = [], method_of(pl_module)
        for name, metric in method.metrics.items():
            with metric.sync_context():
                self.rows += client_rows(name, metric.scores())
        add_columns(method, self.rows)

    on_validation_epoch_end = on_test_epoch_end

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the test results, or those of new clients."""
        rows = [row for row in self.rows if row["split"] != "val"]
        self._write(trainer, pl_module, rows, NEW_CLIENTS if federated(trainer).new_clients else TEST)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the validation results."""
        self._write(trainer, pl_module, [row for row in self.rows if row["split"] == "val"], VALIDATE)

    def _write(self, trainer: pl.Trainer, pl_module: pl.LightningModule, rows: list[dict[str, Any]], name: str) -> None:
        if not trainer.is_global_zero:
            return
        path, temporary = self.folder / name, self.folder / f".{name}.tmp"
        try:
            temporary.unlink(missing_ok=True)
            RoundCsv(temporary).write(method_of(pl_module).clock.rounds, rows)
            files.replace(temporary, path)
        except OSError as error:  # such as in the folder of a colleague; the results are printed all the same
            warnings.warn(f"'{path}' cannot be written ({error.strerror})", stacklevel=2)
        else:
            Console().print(f"Each client:    {path}", soft_wrap=True)
