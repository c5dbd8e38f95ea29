import lightning.pytorch as pl
import torch

from pfl_lightning.callbacks.evaluation import is_new
from pfl_lightning.callbacks.tensorboard import finite_scores, shown_metrics, writers
from pfl_lightning.methods import method_of
from pfl_lightning.quantity import ACCURACY

EDGES = torch.linspace(0, 1, 21).tolist()  # bin edges for errors


class ClientHistograms(pl.Callback):
    """Shows the distribution of the clients' scores in TensorBoard, for each evaluated model.

    The tab *Histograms* has the clients' test errors (losses for a regression) at each evaluation, and their losses on
    training samples if these are evaluated (``data.judge_train``). The tab *Custom Scalars* has the median test score
    with a band from the 10th to the 90th percentile, and the medians of all models; it needs the percentiles of
    ``PercentileErrors``. TensorBoard merges charts of several runs that have the same title.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Define the custom charts at the start of a new run."""
        if not is_new(trainer):
            return
        charts = {}
        method = method_of(pl_module)
        for name in (f"test/{model}" for model in method.judged_models):
            quantity = method.metrics[name].quantity.name
            band = [f"{name}/{quantity}/{percentile}" for percentile in ("p50", "p10", "p90")]
            charts[f"{name}: p50, p10 to p90"] = ["Margin", band]
            charts[f"median {quantity}"] = ["Multiline", [f"^test/[^/]+/{quantity}/p50$"]]
        for writer in writers(trainer):
            writer.add_custom_scalars({"clients' test scores": charts})

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the histograms, before the module resets its metrics."""
        method = method_of(pl_module)
        for name, metric in shown_metrics(method).items():
            _, values = finite_scores(metric)
            bins = EDGES if metric.quantity == ACCURACY else "auto"
            for writer in writers(trainer) if len(values) else ():
                tag, errors = f"{name}/{metric.quantity.error_name}", metric.quantity.errors(values)
                writer.add_histogram(tag, errors, method.clock.rounds, bins)
