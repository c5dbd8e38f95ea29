from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from jsonargparse.typing import OpenUnitInterval, restricted_number_type

from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.methods import method_of
from pfl_lightning.metrics import client_percentiles, superquantile

Percentile: Any = restricted_number_type(
    "Percentile", int, [(">=", 0), ("<=", 100)], docstring="a percentile, 0 to 100"
)


class PercentileErrors(pl.Callback):
    """Logs percentiles of the clients' scores at each evaluation, and writes every client's score to ``clients.csv``.

    The score is the accuracy; for a regression, and on training samples, it is the loss. Percentiles are logged both
    unweighted and weighted by samples. ``superquantile_10`` is the mean score of the worst clients that hold 10 % of
    the samples; for accuracies it is one minus the superquantile of the errors, as in Delta-FL (arXiv:2002.11223).

    Args:
        percentiles: Percentiles to log, 0 to 100.
        tails: Tails of the superquantiles, as shares of the samples.
        table: Whether to write ``clients.csv``.
    """

    def __init__(
        self,
        percentiles: tuple[Percentile, ...] = (5, 10, 25, 50, 75, 90, 95),
        tails: tuple[OpenUnitInterval, ...] = (0.1,),
        table: bool = True,
    ) -> None:
        self.percentiles, self.tails, self.table = percentiles, tails, table
        self.csv: RoundCsv | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the table in the run's folder."""
        if self.table and trainer.is_global_zero and trainer.logger is not None and trainer.log_dir is not None:
            self.csv = RoundCsv(Path(trainer.log_dir) / "clients.csv")

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the percentiles and write the table, before the module resets its metrics."""
        method = method_of(pl_module)
        rows: list[dict[str, Any]] = []
        for name, metric in method.metrics.items():
            with metric.sync_context():
                scores = metric.scores()
            values = metric.values(scores)
            summary = client_percentiles(values, scores.samples, self.percentiles)
            sign = -1 if metric.higher_is_better else 1
            for tail in self.tails:
                summary[f"superquantile_{100 * tail:g}"] = sign * superquantile(sign * values, scores.samples, tail)
            tag = f"{name}/{metric.quantity.name}"
            method.log_dict({f"{tag}/{key}": value.float() for key, value in summary.items()})
            split, model = name.split("/")
            columns = [column.tolist() for column in (scores.ids, scores.samples, scores.correct, scores.loss)]
            rows += [
                {"split": split, "model": model, "client": client, "samples": samples, "correct": correct, "loss": loss}
                for client, samples, correct, loss in zip(*columns, strict=True)
            ]
        if self.csv is not None:
            self.csv.write(method.clock.rounds, rows)

    on_test_epoch_end = on_validation_epoch_end
