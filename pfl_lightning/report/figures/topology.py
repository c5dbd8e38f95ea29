"""Who exchanges models with whom where there is no server, and which classes each client holds."""

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import BoundaryNorm, ListedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Wedge

from pfl_lightning.report.run_files import Floats, Ints

if TYPE_CHECKING:
    import networkx as nx


PIES = 150  # most clients whose classes can be told apart
AROUND = 64  # most clients on one circle
NUMBERED = 40  # most clients whose ids fit into their pies
NAMED = 20  # most classes in a legend
SPARSE = 5  # most neighbours of a client, on average, for links that can be followed
SPRINGS = 100  # iterations of a layout
BARS = 100  # most bars of a histogram
INK = "#404040"  # of text and links
NO_SAMPLES = "#d9d9d9"  # of a client without training samples


def topology_figure(graph: "nx.Graph", counts: Ints, title: str) -> Figure:
    """A graph of the clients, each a pie of the classes of its training samples.

    Args:
        graph: The graph, with the nodes 0, 1, ...
        counts: Training samples of each class at each client, ``[clients, classes]``.
        title: What is shown.

    Returns:
        A figure. Up to 40 clients are numbered; of more than 150, each is a dot in the colour of its largest class.
    """
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    places = places_of(graph)
    colors = class_colors(counts.shape[1])
    _draw_links(axes, graph, places)
    if len(graph) <= PIES:
        _draw_pies(axes, places, counts, colors)
    else:
        dots = [colors[held.argmax()] if held.any() else NO_SAMPLES for held in counts]
        axes.scatter(places[:, 0], places[:, 1], s=40, c=dots, linewidths=0, zorder=2)
    axes.set_title(title, color=INK)
    axes.set_aspect("equal")
    axes.axis("off")
    _explain(figure, axes, colors)
    return figure


def neighbours_figure(graph: "nx.Graph", title: str) -> Figure:
    """How many neighbours the clients of a graph have, where there are too many to be drawn.

    Args:
        graph: The graph.
        title: What is shown.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    degrees = np.array([degree for _, degree in graph.degree()])
    fewest = degrees.min()
    most = degrees.max()
    axes.hist(degrees, bins=min(most - fewest + 1, BARS), range=(fewest - 0.5, most + 0.5), color=INK)
    axes.set_title(title, color=INK)
    axes.set(xlabel="neighbours of a client", ylabel="clients")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def places_of(graph: "nx.Graph") -> Floats:
    """Where to draw the clients, ``[clients, 2]``.

    On a circle; by springs if the links are few enough to be followed, unless the graph can turn on a circle.
    """
    size = len(graph)
    turned = all(graph.has_edge((i + 1) % size, (j + 1) % size) for i, j in graph.edges())
    if turned or size > PIES or 2 * graph.number_of_edges() > SPARSE * size:
        return circle(size)
    import networkx as nx

    start = nx.spectral_layout(graph)  # not a random one, which tangles
    layout = nx.spring_layout(graph, pos=start, iterations=SPRINGS, seed=0)
    return np.array([layout[client] for client in range(size)])


def circle(size: int) -> Floats:
    """Floats on a circle, clockwise from the top, ``[size, 2]``; many are staggered inwards, so that they are apart."""
    number = np.arange(size)
    rings = -(-size // AROUND)
    depth = number % rings + rings * (number >= size - size % rings)  # the last ones are not beside the first
    radius = 1 - min(0.09, 0.6 / rings) * depth
    angle = np.pi / 2 - 2 * np.pi * number / size
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)


def class_colors(num_classes: int) -> list[str]:
    """A colour for each class: distinct ones for up to 20 classes, else along a rainbow."""
    if num_classes > NAMED:
        return [to_hex(color) for color in mpl.colormaps["turbo"](np.linspace(0.03, 0.97, num_classes))]
    distinct = mpl.colormaps["tab10" if num_classes <= 10 else "tab20"]
    return [to_hex(distinct(number)) for number in range(num_classes)]


def _draw_links(axes: Axes, graph: "nx.Graph", places: Floats) -> None:
    """Links behind the clients, the paler the more there are."""
    lines = [places[list(link)] for link in graph.edges()]
    crowd = 1 + 2 * len(lines) / len(graph)  # a client and its neighbours, on average
    width = np.clip(6 / crowd, 0.3, 1.5)
    alpha = np.clip(min(4 / crowd, 400 / (1 + len(lines))), 0.05, 0.7)
    axes.add_collection(LineCollection(lines, colors=[INK], linewidths=width, alpha=alpha, zorder=1))


def _draw_pies(axes: Axes, places: Floats, counts: Ints, colors: list[str]) -> None:
    """A pie for each client, clockwise from the top; around its id where there is room."""
    radius = radius_of(places)
    slices = []
    for place, held in zip(places, counts, strict=True):
        if not held.any():
            slices.append((Wedge(place, radius, 0, 360), NO_SAMPLES))
        ends = 90 - 360 * np.cumsum([0, *held]) / max(held.sum(), 1)
        slices += [(Wedge(place, radius, ends[c + 1], ends[c]), colors[c]) for c in np.flatnonzero(held).tolist()]
    wedges, faces = zip(*slices, strict=True)
    width = 0.3 if len(colors) <= NAMED else 0
    axes.add_collection(PatchCollection(wedges, facecolors=faces, edgecolors="white", linewidths=width, zorder=2))
    if len(places) <= NUMBERED:
        holes = [Wedge(place, 0.55 * radius, 0, 360) for place in places]
        axes.add_collection(PatchCollection(holes, facecolors="white", linewidths=0, zorder=3))
        for client, (x, y) in enumerate(places):
            axes.text(x, y, str(client), ha="center", va="center_baseline", fontsize=8, color=INK, zorder=4)
    xlim, ylim = zip(places.min(0) - 1.1 * radius, places.max(0) + 1.1 * radius, strict=True)
    axes.set(xlim=xlim, ylim=ylim)


def radius_of(places: Floats) -> float:
    """Radius of the pies: they rarely touch, and are neither lost among the links nor out of proportion."""
    extent = np.ptp(places, axis=0).max(initial=0) or 1.0
    apart = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(len(places), np.inf))
    nearest = np.percentile(apart.min(1), 20) if len(places) > 1 else extent
    return float(np.clip(0.46 * nearest, 0.02 * extent, 0.06 * extent))


def _explain(figure: Figure, axes: Axes, colors: list[str]) -> None:
    """Name the colours of the classes."""
    if len(colors) > NAMED:
        bounds = np.arange(len(colors) + 1) - 0.5
        scale = ScalarMappable(BoundaryNorm(bounds, len(colors)), ListedColormap(colors))
        bar = figure.colorbar(scale, ax=axes, label="class", shrink=0.6)
        bar.set_ticks(range(0, len(colors), -(-len(colors) // 10)))
        bar.minorticks_off()
        return
    dots = [Line2D([], [], marker="o", linestyle="", markersize=8, color=color) for color in colors]
    figure.legend(dots, map(str, range(len(colors))), title="class", loc="outside right center", frameon=False)
