"""What the callbacks share that draw: a figure goes to every logger that takes figures."""

from collections.abc import Callable, Iterator

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pfl_lightning.callbacks.board import Board

DPI = 150  # of figures with small text

Painter = Callable[[str, Figure, int], object]


def painters(trainer: pl.Trainer) -> list[Painter]:
    """Functions that show a figure under a tag and a round, one for each logger of this run that takes figures.

    These are TensorBoard's, MLflow's, and all that have ``log_image(key, images, step)`` as W&B's has. There are none
    in the processes that do not log.
    """
    return list(_painters(trainer)) if trainer.is_global_zero else []


def _painters(trainer: pl.Trainer) -> Iterator[Painter]:
    for logger in trainer.loggers:
        if isinstance(logger, Board):
            yield logger.show_figure
        elif isinstance(logger, TensorBoardLogger):
            yield logger.experiment.add_figure
        elif isinstance(logger, MLFlowLogger):
            yield _as_artifact(logger)
        elif hasattr(logger, "log_image"):
            yield _as_image(logger.log_image)


def show_figure(trainer: pl.Trainer, tag: str, figure: Figure, step: int, dpi: int = DPI) -> None:
    """Show a figure under a tag.

    Args:
        trainer: The trainer, which has the loggers.
        tag: Name of the figure, such as ``data/partition``.
        figure: The figure.
        step: Rounds completed.
        dpi: Pixels per inch.
    """
    figure.set_dpi(dpi)
    for paint in painters(trainer):
        paint(tag, figure, step)


def _as_artifact(logger: MLFlowLogger) -> Painter:
    """MLflow keeps figures as files, without steps."""
    return lambda tag, figure, step: logger.experiment.log_figure(logger.run_id, figure, f"{tag}/{step:06}.png")


def _as_image(log_image: Callable[..., object]) -> Painter:
    """Others take arrays of pixels."""
    return lambda tag, figure, step: log_image(tag, [pixels(figure)], step=step)


def pixels(figure: Figure) -> np.ndarray:
    """A figure as an image, ``[height, width, 3]`` of bytes."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
