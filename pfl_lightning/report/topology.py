"""Who exchanges models with whom where there is no server, and which classes each client holds."""

from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Wedge
from numpy.typing import NDArray

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
    held = np.column_stack([counts, np.where(counts.any(1), 0, 1)])  # to have no samples is a class of its own
    faces = np.array([*colors, NO_SAMPLES])
    _draw_links(axes, graph, places)
    if len(graph) <= PIES:
        _draw_pies(axes, places, held, faces)
    else:
        axes.scatter(places[:, 0], places[:, 1], s=40, c=faces[held.argmax(1)], linewidths=0, zorder=2)
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
    degrees = [degree for _, degree in graph.degree()]
    fewest = min(degrees)
    most = max(degrees)
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
        return list(map(to_hex, mpl.colormaps["turbo"](np.linspace(0.03, 0.97, num_classes))))
    return list(map(to_hex, mpl.color_sequences["tab10" if num_classes <= 10 else "tab20"][:num_classes]))


def _draw_links(axes: Axes, graph: "nx.Graph", places: Floats) -> None:
    """Links behind the clients, the paler the more there are."""
    lines = [places[list(link)] for link in graph.edges()]
    crowd = 1 + 2 * len(lines) / len(graph)  # a client and its neighbours, on average
    width = np.clip(6 / crowd, 0.3, 1.5)
    alpha = np.clip(min(4 / crowd, 400 / (1 + len(lines))), 0.05, 0.7)
    axes.add_collection(LineCollection(lines, colors=[INK], linewidths=width, alpha=alpha, zorder=1))


def _draw_pies(axes: Axes, places: Floats, held: Ints, faces: NDArray[np.str_]) -> None:
    """A pie for each client, clockwise from the top; around its id where there is room."""
    radius = radius_of(places)
    degrees = 360 * held / held.sum(1, keepdims=True)
    ends = 90 - np.cumsum(degrees, axis=1)
    clients, classes = np.nonzero(held)
    slices = [
        Wedge(places[client], radius, ends[client, label], ends[client, label] + degrees[client, label])
        for client, label in zip(clients, classes, strict=True)
    ]
    width = 0.3 if len(faces) <= NAMED + 1 else 0
    axes.add_collection(
        PatchCollection(slices, facecolors=faces[classes], edgecolors="white", linewidths=width, zorder=2)
    )
    for client, (x, y) in enumerate(places if len(places) <= NUMBERED else ()):
        axes.add_patch(Circle((x, y), 0.55 * radius, color="white", linewidth=0, zorder=3))
        axes.text(x, y, str(client), ha="center", va="center_baseline", fontsize=8, color=INK, zorder=4)
    axes.margins(0.01)


def radius_of(places: Floats) -> float:
    """Radius of the pies: they rarely touch, and are neither lost among the links nor out of proportion."""
    extent = np.ptp(places, axis=0).max() or 1.0
    apart = np.sort(np.linalg.norm(places[:, None] - places, axis=2))
    nearest = apart[:, :2].max(1)  # as the very nearest is the client itself
    return float(np.clip(0.46 * np.percentile(nearest, 20), 0.02 * extent, 0.06 * extent))


def _explain(figure: Figure, axes: Axes, colors: list[str]) -> None:
    """Name the colours of the classes."""
    number = len(colors)
    if number > NAMED:
        scale = ScalarMappable(Normalize(-0.5, number - 0.5), ListedColormap(colors))
        figure.colorbar(scale, ax=axes, label="class", shrink=0.6, ticks=range(0, number, -(-number // 10)))
        return
    dots = [Line2D([], [], marker="o", linestyle="", markersize=8, color=color) for color in colors]
    figure.legend(dots, map(str, range(number)), title="class", loc="outside right center", frameon=False)
