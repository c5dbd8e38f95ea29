import lightning.pytorch as pl
from torch import Tensor

from pfl_lightning.callbacks.figures import painters, show_figure
from pfl_lightning.callbacks.tensorboard import finite_scores, shown_metrics
from pfl_lightning.methods import Method, method_of
from pfl_lightning.report import scatter_figure

DPI = 200  # of an image, which is 4.5 x 3.4 inches


class ClientScatter(pl.Callback):
    """Shows each client's test error against its number of samples, for each evaluated model.

    The figure ``test/global/error_by_samples`` is drawn at the first and at the last evaluation of a run, and so is
    ``train/global/loss_by_samples`` if training samples are evaluated (``data.eval_train``).
    """

    def __init__(self) -> None:
        self.scores: dict[str, tuple[Tensor, Tensor]] = {}

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the scores, before the module resets its metrics; draw them if this is the first evaluation."""
        method = method_of(pl_module)
        self.scores = {name: finite_scores(metric) for name, metric in shown_metrics(method).items()}
        if trainer.global_step == 0:
            self._draw(trainer, method)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the scores of the last evaluation."""
        self._draw(trainer, method_of(pl_module))

    def _draw(self, trainer: pl.Trainer, method: Method) -> None:
        for name, (samples, values) in self.scores.items() if painters(trainer) else ():
            if len(samples):
                quantity = method.evaluator.scores[name].quantity
                figure = scatter_figure(samples.cpu().numpy(), values.cpu().numpy(), quantity, name.partition("/")[0])
                tag = f"{name}/{quantity.error_name}_by_samples"
                show_figure(trainer, tag, figure, method.accounting.clock.rounds, dpi=DPI)
