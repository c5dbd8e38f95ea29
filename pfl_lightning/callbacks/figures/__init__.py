"""Figures in TensorBoard and other loggers that take them."""

from pfl_lightning.callbacks.board import show_figure
from pfl_lightning.callbacks.figures.cosine_maps import CosineMaps
from pfl_lightning.callbacks.figures.run_figures import RunFigures, graph_figure
from pfl_lightning.callbacks.figures.sparsity_tracker import SparsityTracker

__all__ = ["CosineMaps", "RunFigures", "SparsityTracker", "graph_figure", "show_figure"]
