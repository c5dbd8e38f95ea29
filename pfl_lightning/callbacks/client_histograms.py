import lightning.pytorch as pl
import torch

from pfl_lightning.callbacks.tensorboard import finite_scores, shown_metrics, writers
from pfl_lightning.methods import method_of
from pfl_lightning.quantity import ACCURACY

EDGES = torch.linspace(0, 1, 21).tolist()  # bin edges for errors


class ClientHistograms(pl.Callback):
    """Shows the distribution of the clients' scores in TensorBoard's tab *Histograms*, for each evaluated model.

    These are the clients' test errors (losses for a regression) at each evaluation, and their losses on training
    samples if these are evaluated (``data.eval_train``).
    """

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the histograms, before the module resets its metrics."""
        method = method_of(pl_module)
        for name, metric in shown_metrics(method).items():
            _, values = finite_scores(metric)
            bins = EDGES if metric.quantity == ACCURACY else "auto"
            for writer in writers(trainer) if len(values) else ():
                tag, errors = f"{name}/{metric.quantity.error_name}", metric.quantity.errors(values)
                writer.add_histogram(tag, errors, method.accounting.clock.rounds, bins)
