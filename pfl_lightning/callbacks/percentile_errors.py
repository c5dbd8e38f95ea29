from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from jsonargparse.typing import OpenUnitInterval, restricted_number_type

from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.methods import Method
from pfl_lightning.metrics import client_percentiles, superquantile

Percentile = restricted_number_type("Percentile", int, [(">=", 0), ("<=", 100)], docstring="a percentile, 0 to 100")


class PercentileErrors(pl.Callback):
    """Logs percentiles of the clients' scores at each evaluation, and writes every client's to ``clients.csv``.

    A score is the accuracy, or the loss where there are no classes. Percentiles are plain and weighted by samples.
    ``superquantile`` is the mean score of the worst clients that hold a share ``tail`` of the samples; of accuracies it
    is one minus Delta-FL's superquantile of the errors.

    Args:
        percentiles: Which percentiles.
        tail: Share of the samples in the tail.
        table: Whether to write ``clients.csv``.
    """

    def __init__(
        self,
        percentiles: tuple[Percentile, ...] = (5, 10, 25, 50, 75, 90, 95),  # type: ignore[valid-type]
        tail: OpenUnitInterval = 0.1,
        table: bool = True,
    ) -> None:
        self.percentiles, self.tail, self.table = percentiles, tail, table
        self.csv: RoundCsv | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the table in the run's folder."""
        if self.table and trainer.is_global_zero and trainer.logger is not None and trainer.log_dir is not None:
            self.csv = RoundCsv(Path(trainer.log_dir) / "clients.csv")

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the percentiles and write the clients, before the module resets its metrics."""
        assert isinstance(pl_module, Method)
        rows: list[dict[str, Any]] = []
        for name, metric in pl_module.metrics.items():
            with metric.sync_context():
                scores = metric.scores()
            values = metric.values(scores)
            summary = client_percentiles(values, scores.samples, self.percentiles)
            sign = -1 if metric.higher_is_better else 1
            summary["superquantile"] = sign * superquantile(sign * values, scores.samples, self.tail)
            pl_module.log_dict(
                {f"{name}/{metric.quantity.name}/{key}": value.float() for key, value in summary.items()}
            )
            split, model = name.split("/")
            columns = [column.tolist() for column in (scores.ids, scores.samples, scores.correct, scores.loss)]
            rows += [
                {"split": split, "model": model, "client": client, "samples": samples, "correct": correct, "loss": loss}
                for client, samples, correct, loss in zip(*columns, strict=True)
            ]
        if self.csv is not None:
            self.csv.write(pl_module.clock.rounds, rows)

    on_test_epoch_end = on_validation_epoch_end
