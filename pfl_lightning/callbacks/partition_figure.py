import lightning.pytorch as pl

from pfl_lightning.callbacks.evaluation import is_new
from pfl_lightning.callbacks.figures import painters, show_figure
from pfl_lightning.data import federated
from pfl_lightning.report import partition_card


class PartitionFigure(pl.Callback):
    """Shows how the data is split among the clients, as the figure ``data/partition``."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the figure at the start of a new run."""
        if not is_new(trainer) or not painters(trainer):
            return
        data = federated(trainer)
        figure = partition_card(data.class_counts(), type(data).__name__)
        show_figure(trainer, "data/partition", figure, 0)
