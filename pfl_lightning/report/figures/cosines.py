from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

Map = NDArray[np.float64]
Counts = NDArray[np.int64]

NUMBERED = 32  # most clients with their ids at the axis
NARROWEST = 0.1  # scale of colours, so that rounding is no pattern


def cosine_figure(maps: Mapping[str, Map], counts: Counts) -> Figure:
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
        shown = np.arange(len(order) if len(order) <= NUMBERED else 0)
        axes.set_xticks([])
        axes.set_yticks(shown, [str(client) for client in order[shown]], fontsize=6)
        figure.colorbar(image, ax=axes, shrink=0.8)
    figure.suptitle("Cosines between clients")
    return figure


def by_largest_class(counts: Counts) -> NDArray[np.int64]:
    """The clients, ordered by the class of which they have most samples, and within it by its share, ``[clients]``.

    Examples:
        >>> by_largest_class(np.array([[1, 9], [5, 5], [0, 1], [8, 1]])).tolist()
        [1, 3, 0, 2]
    """
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.lexsort([shares.max(1), counts.argmax(1)])
