"""Figures of one run, or of its data."""

from pfl_lightning.report.figures.cosines import cosine_figure
from pfl_lightning.report.figures.density import density_figure
from pfl_lightning.report.figures.partition import partition_card, partition_figure, partition_table
from pfl_lightning.report.figures.scatter import scatter_axes, scatter_figure
from pfl_lightning.report.figures.topology import neighbours_figure, topology_figure

__all__ = [
    "cosine_figure",
    "density_figure",
    "neighbours_figure",
    "partition_card",
    "partition_figure",
    "partition_table",
    "scatter_axes",
    "scatter_figure",
    "topology_figure",
]
