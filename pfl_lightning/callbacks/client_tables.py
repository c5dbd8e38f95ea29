import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from pfl_lightning import files
from pfl_lightning.bounds import OpenUnitInterval, Percentile
from pfl_lightning.callbacks.round_csv import RoundCsv, RunTable, columns_of, csv_text
from pfl_lightning.callbacks.run_folder import folder_of
from pfl_lightning.data import federated
from pfl_lightning.methods import Method, method_of
from pfl_lightning.metrics import ClientScores, client_percentiles, fairness_summary, superquantile
from pfl_lightning.report.run_files import CLIENTS
from pfl_lightning.score_kind import ACCURACY


class PercentileErrors(RunTable):
    """Logs percentiles of the clients' scores at each evaluation, and writes every client's score to ``clients.csv``.

    The score is the task's, such as the accuracy; on training samples it is the loss. Percentiles are logged both
    unweighted and weighted by samples. ``superquantile_10`` is the mean score of the worst clients that hold 10 % of
    the samples; for accuracies it is one minus the superquantile of the errors, as in Delta-FL (arXiv:2002.11223).

    Args:
        percentiles: Percentiles to log, 0 to 100.
        tails: Tails of the superquantiles, as shares of the samples.
        errors: Also log mean, percentiles and superquantiles of the errors, 1 - accuracy, as Delta-FL reports them:
            ``test/global/error/p90`` and so on.
        table: Whether to write ``clients.csv``.
        fairness: Also log how equal scores are, by the indices of Gini and Jain and the entropy.
    """

    file = CLIENTS

    def __init__(
        self,
        percentiles: tuple[Percentile, ...] = (5, 10, 25, 50, 75, 90, 95),
        tails: tuple[OpenUnitInterval, ...] = (0.1,),
        errors: bool = False,
        table: bool = True,
        fairness: bool = False,
    ) -> None:
        self.percentiles = percentiles
        self.tails = tails
        self.errors = errors
        self.table = table
        self.fairness = fairness

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the table in the run's folder."""
        folder = folder_of(trainer)
        is_trial = trainer.fast_dev_run  # type: ignore[attr-defined]
        writes = self.table and trainer.is_global_zero and trainer.logger is not None and not is_trial
        self.csv = RoundCsv(folder / self.file) if writes else None

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the percentiles and write the table, before the module resets its metrics."""
        method = method_of(pl_module)
        rows: list[dict[str, Any]] = []
        for name, metric in method.evaluator.scores.items():
            scores = gathered(metric)
            values, samples = metric.defined(scores)
            score_kind = metric.score_kind
            self._log(method, f"{name}/{score_kind.name}", values, samples, score_kind.higher_is_better)
            if self.errors and score_kind == ACCURACY:
                tag = f"{name}/{score_kind.error_name}"
                errors = score_kind.errors(values)
                method.log(f"{tag}/mean", errors.mean().float())
                self._log(method, tag, errors, samples, higher_is_better=False)
            rows += client_rows(method, name, scores)
        for tag, client_metric in method.evaluator.others.items():
            _, samples, values = gathered(client_metric)
            self._log(method, tag, values, samples, client_metric.score_kind.higher_is_better)
        if self.csv is not None and trainer.state.fn == TrainerFn.FITTING:
            self.csv.write(method.accounting.clock.rounds, rows)

    on_test_epoch_end = on_validation_epoch_end

    def _log(self, method: Method, tag: str, values: Tensor, samples: Tensor, higher_is_better: bool) -> None:
        """Log percentiles, and means of the worst clients."""
        sign = -1 if higher_is_better else 1
        summary = client_percentiles(values, samples, self.percentiles)
        for tail in self.tails:
            summary[f"superquantile_{100 * tail:g}"] = sign * superquantile(sign * values, samples, tail)
        if self.fairness:
            summary |= fairness_summary(values)
        method.log_dict({f"{tag}/{key}": value.float() for key, value in summary.items()})


def gathered(metric: Any) -> Any:
    """The clients' scores of a metric, from all processes, which must call this together."""
    with metric.sync_context():
        return metric.scores()


def written(text: str, path: Path) -> bool:
    """Write a file of an evaluation; whether that was possible, which in the folder of a colleague it may not be."""
    try:
        files.write_text(text, path)
    except OSError as error:
        warnings.warn(f"'{path}' cannot be written ({error.strerror})", stacklevel=2)
        return False
    return True


def client_rows(method: Method, name: str, scores: ClientScores) -> list[dict[str, Any]]:
    """What each client got with a model on a split, ``split/model``, as rows of ``clients.csv``."""
    split, model = name.split("/")
    rows: dict[int, dict[str, Any]] = {}
    columns = method.evaluator.scores[name].columns(scores)
    for cells in zip(*(column.tolist() for column in columns.values()), strict=True):
        rows[cells[0]] = {"split": split, "model": model, **dict(zip(columns, cells, strict=True))}
    for tag, metric in method.evaluator.others.items():
        if tag.startswith(f"{name}/"):
            ids, _, values = gathered(metric)
            for client, value in zip(ids.tolist(), values.tolist(), strict=True):
                rows[client][tag.rpartition("/")[2]] = value
    return list(rows.values())


class EvaluationTable(pl.Callback):
    """Writes what each client got in ``pfl test`` or ``pfl validate`` into the run's folder.

    The columns are those of ``clients.csv``. ``validate.csv`` has the validation samples and ``test.csv`` the others;
    clients that are new to the run are in ``new_clients.csv``.

    Args:
        run_folder: The run's folder, where other callbacks write their files, too; None to write nothing.

    Attributes:
        rows: The rows; after the evaluation.
        path: The file, if it was written.
    """

    def __init__(self, run_folder: Path | None = None) -> None:
        self.run_folder = run_folder
        self.path: Path | None = None
        self.rows: list[dict[str, Any]] = []

    def on_test_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Collect the clients' results before the module resets its metrics, and write them."""
        validates = trainer.state.fn == "validate"
        method = method_of(pl_module)
        self.rows = [
            {"round": method.accounting.clock.rounds, **row}
            for name, metric in method.evaluator.scores.items()
            if name.startswith("val/") == validates
            for row in client_rows(method, name, gathered(metric))
        ]
        if self.run_folder is not None and trainer.is_global_zero:
            evaluated = "new_clients" if federated(trainer).new_clients else "test"
            path = self.run_folder / ("validate.csv" if validates else f"{evaluated}.csv")
            if written(csv_text(columns_of(self.rows), self.rows, header=True), path):
                self.path = path

    on_validation_epoch_end = on_test_epoch_end
