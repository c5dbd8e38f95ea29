from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pfl_lightning.callbacks.board import Board, tag_of

DPI = 150  # of figures with small text


def show_figure(trainer: pl.Trainer, tag: str, figure: Figure, step: int, dpi: int = DPI) -> None:
    """Show a figure in every logger of this run that takes figures.

    These are TensorBoard's, MLflow's, and all that have ``log_image(key, images, step)`` as W&B's has. There are none
    in the processes that do not log.

    Args:
        trainer: The trainer, which has the loggers.
        tag: Name of the figure, such as ``data/partition``.
        figure: The figure.
        step: Rounds completed.
        dpi: Pixels per inch.
    """
    figure.set_dpi(dpi)
    for logger in figure_loggers(trainer):
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_figure(tag_of(tag) if isinstance(logger, Board) else tag, figure, step)
        elif isinstance(logger, MLFlowLogger):  # it keeps figures as files, without steps
            logger.experiment.log_figure(logger.run_id, figure, f"{tag}/{step:06}.png")
        else:
            logger.log_image(tag, [pixels(figure)], step=step)


def figure_loggers(trainer: pl.Trainer) -> list[Any]:
    """The loggers that show figures; none in the processes that do not log."""
    every = trainer.loggers if trainer.is_global_zero else []
    return [each for each in every if isinstance(each, TensorBoardLogger | MLFlowLogger) or hasattr(each, "log_image")]


def pixels(figure: Figure) -> np.ndarray:
    """A figure as an image, ``[height, width, 3]`` of bytes."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
