import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from pfl_lightning import files
from pfl_lightning.callbacks.percentile_errors import client_rows, gathered
from pfl_lightning.callbacks.round_csv import text_of
from pfl_lightning.data import federated
from pfl_lightning.methods import method_of

TEST, VALIDATE, NEW_CLIENTS = "test.csv", "validate.csv", "new_clients.csv"


class EvaluationTable(pl.Callback):
    """Writes what each client got in ``pfl test`` or ``pfl validate`` into the run's folder.

    The columns are those of ``clients.csv``. ``validate.csv`` has the validation samples and ``test.csv`` the others;
    clients that are new to the run are in ``new_clients.csv``.

    Args:
        folder: The run's folder; None to write nothing.

    Attributes:
        rows: The rows; after the evaluation.
        path: The file, if it was written.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.path: Path | None = None

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the clients' results before the module resets its metrics."""
        validates, method = trainer.state.fn == "validate", method_of(pl_module)
        self.rows = []
        for name, metric in method.evaluator.scores.items():
            if name.startswith("val/") == validates:
                rows = client_rows(method, name, gathered(metric))
                self.rows += [{"round": method.accounting.clock.rounds, **row} for row in rows]

    on_validation_epoch_end = on_test_epoch_end

    def on_test_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the test results, or those of new clients."""
        self._write(trainer, NEW_CLIENTS if federated(trainer).new_clients else TEST)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the validation results."""
        self._write(trainer, VALIDATE)

    def _write(self, trainer: pl.Trainer, name: str) -> None:
        if self.folder is None or not trainer.is_global_zero:
            return
        path = self.folder / name
        try:
            files.write_text(text_of(self.rows), path)
            self.path = path
        except OSError as error:  # such as in the folder of a colleague; the results are printed all the same
            warnings.warn(f"'{path}' cannot be written ({error.strerror})", stacklevel=2)
