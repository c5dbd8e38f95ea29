"""Heat maps: cosines between clients, and the density of layers over the rounds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from pfl_lightning.report.run_files import Floats, Ints
from pfl_lightning.score_kind import ScoreKind

NUMBERED = 32  # most clients with their ids at the axis
NARROWEST = 0.1  # scale of colours, so that rounding is no pattern


def cosine_figure(maps: Mapping[str, Floats], counts: Ints) -> Figure:
    """Heat maps of cosines between clients, side by side, with clients of the same largest class beside each other.

    Args:
        maps: Cosines by name, ``[clients, clients]`` each.
        counts: Training samples of each class at each client, ``[clients, classes]``.

    Returns:
        A figure with a panel for each map, in the same order of the clients; each has a scale of its own, up to 1.
    """
    order = by_largest_class(counts)
    figure = Figure(figsize=(4.2 * len(maps), 3.9), layout="constrained")
    for axes, (name, cosines) in zip(figure.subplots(1, len(maps), squeeze=False)[0], maps.items(), strict=True):
        lowest = min(cosines.min(), 1 - NARROWEST)
        image = axes.imshow(cosines[np.ix_(order, order)], vmin=lowest, vmax=1, interpolation="nearest")
        axes.set_title(f"{name}, smallest {cosines.min():.4g}")
        axes.set_xlabel("clients by their largest class")
        clients = order if len(order) <= NUMBERED else order[:0]
        axes.set_xticks([])
        axes.set_yticks(range(len(clients)), map(str, clients), fontsize=6)
        figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle("Cosines between clients")
    return figure


def cross_site_figure(scores: Floats, order: Ints, score_kind: ScoreKind, model: str) -> Figure:
    """A heat map of the score of each client's model on each client's samples.

    Args:
        scores: ``[models, sites]``; nan where there is none.
        order: The clients from top to bottom, and from left to right.
        score_kind: What the scores are.
        model: Name of the model.
    """
    figure = Figure(figsize=(5.2, 4.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(score_kind.scale * scores[np.ix_(order, order)], interpolation="nearest")
    named = order if len(order) <= NUMBERED else order[:0]
    axes.set_xticks(range(len(named)), map(str, named), fontsize=6, rotation=90)
    axes.set_yticks(range(len(named)), map(str, named), fontsize=6)
    axes.set(xlabel="samples of client", ylabel="model of client", title=f"Test {score_kind.label} of {model} models")
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def by_largest_class(counts: Ints) -> Ints:
    """The clients, ordered by the class of which they have most samples, and within it by its share, ``[clients]``.

    Examples:
        >>> by_largest_class(np.array([[1, 9], [5, 5], [0, 1], [8, 1]])).tolist()
        [1, 3, 0, 2]
    """
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.lexsort([shares.max(1), counts.argmax(1)])


INCHES = 0.25  # height of a layer's row
LABELS = 60  # most rows that are all named


def density_figure(rounds: Sequence[int], rows: Sequence[str], densities: Floats, title: str) -> Figure:
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
