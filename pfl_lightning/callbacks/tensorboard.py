"""What the callbacks share that show something in TensorBoard."""

import lightning.pytorch as pl
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from pfl_lightning.methods import Method
from pfl_lightning.metrics import ClientScore


def tensorboards(trainer: pl.Trainer) -> list[TensorBoardLogger]:
    """The loggers of this run that write for TensorBoard; none in the processes that do not log."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero]


def writers(trainer: pl.Trainer) -> list[SummaryWriter]:
    """TensorBoard's writers of this run."""
    return [logger.experiment for logger in tensorboards(trainer)]


def shown_metrics(method: Method) -> dict[str, ClientScore]:
    """The scores on test samples, and on training samples where they are evaluated, by ``split/model``."""
    return {name: metric for name, metric in method.evaluator.scores.items() if name.startswith(("test/", "train/"))}


def finite_scores(metric: ClientScore) -> tuple[Tensor, Tensor]:
    """Number of samples and score of each client; in a run that diverges, only of the clients with a finite score.

    Args:
        metric: The scores; all processes must call this together.

    Returns:
        Two tensors on the metric's device, ``[clients]`` each.
    """
    with metric.sync_context():
        scores = metric.scores()
    values = metric.values(scores)
    finite = values.isfinite()
    return scores.samples[finite], values[finite]
