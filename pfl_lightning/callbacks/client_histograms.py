import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from pfl_lightning.methods import Method, method_of
from pfl_lightning.metrics import ClientScore
from pfl_lightning.quantity import ACCURACY

EDGES = torch.linspace(0, 1, 21).tolist()  # bin edges for errors


class ClientHistograms(pl.Callback):
    """Shows the distribution of the clients' test scores in TensorBoard, for each evaluated model.

    The tab *Histograms* has the clients' errors (losses for a regression) at each evaluation. The tab *Custom Scalars*
    has the median score with a band from the 10th to the 90th percentile, and the medians of all models; it needs the
    percentiles of ``PercentileErrors``. TensorBoard merges charts of several runs that have the same title.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Define the custom charts at the start of a new run."""
        if trainer.global_step > 0:
            return
        charts = {}
        for name, metric in _test_metrics(method_of(pl_module)).items():
            quantity = metric.quantity.name
            band = [f"{name}/{quantity}/{percentile}" for percentile in ("p50", "p10", "p90")]
            charts[f"{name}: p50, p10 to p90"] = ["Margin", band]
            charts[f"median {quantity}"] = ["Multiline", [f"^test/[^/]+/{quantity}/p50$"]]
        for writer in _writers(trainer):
            writer.add_custom_scalars({"clients' test scores": charts})

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the histograms, before the module resets its metrics."""
        method = method_of(pl_module)
        for name, metric in _test_metrics(method).items():
            with metric.sync_context():
                errors = metric.quantity.errors(metric.values(metric.scores()))
            bins = EDGES if metric.quantity == ACCURACY else "auto"
            for writer in _writers(trainer):
                writer.add_histogram(f"{name}/{metric.quantity.error_name}", errors, method.clock.rounds, bins)


def _test_metrics(method: Method) -> dict[str, ClientScore]:
    return {name: metric for name, metric in method.metrics.items() if name.startswith("test/")}


def _writers(trainer: pl.Trainer) -> list[SummaryWriter]:
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
