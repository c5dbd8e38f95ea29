from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

INCHES = 0.25  # height of a layer's row
LABELS = 60  # most rows that are all named


def density_figure(rounds: Sequence[int], rows: Sequence[str], densities: NDArray[np.float64], title: str) -> Figure:
    """A heat map of the density of a model's layers over the rounds.

    Args:
        rounds: Rounds completed at each evaluation, ascending.
        rows: Names of the layers from input to output, and of the whole model at the end.
        densities: Shares of entries in [0, 1], ``[evaluations, rows]``.
        title: What is shown.

    Returns:
        A figure with the input layer at the top, and the last densities in numbers; a column reaches halfway to the
        evaluations beside it.
    """
    figure = Figure(figsize=(7, 1.2 + INCHES * min(len(rows), LABELS)), layout="constrained")
    axes = figure.subplots()
    middles = np.arange(len(rows)) + 0.5
    mesh = axes.pcolormesh(rounds, middles, densities.T, shading="nearest", vmin=0, vmax=1, rasterized=True)
    axes.axhline(len(rows) - 1, color="white", linewidth=2)  # the whole model is apart from its layers
    step = -(-len(rows) // LABELS)
    labels = [f"{row}: {share:.1%}" for row, share in zip(rows, densities[-1], strict=True)]
    axes.set_yticks(np.arange(0, len(rows), step) + 0.5, labels[::step], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="round", title=title)
    axes.locator_params(axis="x", integer=True)
    figure.colorbar(mesh, label="density")
    return figure
