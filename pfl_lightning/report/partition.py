"""How a data set is split among the clients."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from pfl_lightning.report.drawing import CARD, CARD_SIZE, grid
from pfl_lightning.report.run_files import Ints

BUBBLES = 100  # clients in the bubble plot; more cannot be told apart
POINTS = 1000  # clients in the plot of sizes; more take seconds and change nothing
TAB_BLUE = "#1f77b4"


def partition_table(counts: Mapping[str, Ints]) -> Table:
    """Clients, samples and classes of each split.

    Args:
        counts: Samples of each class at each client, by split, ``[clients, classes]``.

    Returns:
        One row per split that has samples; the distributions are over the clients that have samples in it.
    """
    columns = ("split", "clients", "samples", "min", "median", "max", "classes", "per client (median)")
    table = Table(*columns, title="How the data is split among the clients", title_justify="left")
    for split, per_class in counts.items():
        held = per_class[per_class.sum(1) > 0]
        if len(held):
            sizes = held.sum(1)
            classes = (held > 0).sum(1)
            spread = (sizes.min(), np.median(sizes), sizes.max(), (held.sum(0) > 0).sum(), np.median(classes))
            table.add_row(split, f"{len(held):,}", f"{sizes.sum():,}", *(f"{value:,g}" for value in spread))
    return table


def partition_figure(counts: Mapping[str, Ints], title: str) -> Figure:
    """Bubbles for the training samples of each class at each client, and how many samples clients have.

    Args:
        counts: Samples of each class at each client, by split, ``[clients, classes]``.
        title: Name of the data set.

    Returns:
        A figure of two panels; of more than 100 clients with training samples, 100 at equal distances are in the first.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    bubbles, sizes = figure.subplots(1, 2, width_ratios=(3, 1))
    bubbles.tick_params(axis="x", labelsize=8)
    clients, number = _draw_bubbles(bubbles, counts["train"], room=(600, 260), labels=20)
    among = "" if clients == number else f", {clients} of them shown"
    bubbles.set_title(f"{title}: training samples per class and client ({number:,} clients{among})")
    _draw_sizes(sizes, counts)
    return figure


def partition_card(counts: Mapping[str, Ints], title: str) -> Figure:
    """The bubbles of ``partition_figure`` alone, to be read when small.

    Args:
        counts: Samples of each class at each client, by split, ``[clients, classes]``.
        title: Name of the data set.
    """
    with grid(*CARD_SIZE, 1, 1, style=CARD) as (figure, ((axes,),)):
        _, number = _draw_bubbles(axes, counts["train"], room=(250, 170), labels=6)
        axes.set_title(f"{title}: {number:,} clients")
        axes.grid(visible=False)
    return figure


def _draw_bubbles(axes: Axes, train: Ints, room: tuple[float, float], labels: int) -> tuple[int, int]:
    """One bubble per client and class; the area is the number of samples, the largest nearly fills its place.

    Args:
        axes: Where to draw.
        train: Training samples of each class at each client, ``[clients, classes]``.
        room: Width and height of the axes, in points.
        labels: About how many clients, and classes, are named at most.

    Returns:
        How many clients are drawn, and how many have training samples.
    """
    ids = np.flatnonzero(train.sum(1))
    clients = _spread(ids, BUBBLES)
    columns, classes = np.nonzero(train[clients])
    amounts = train[clients[columns], classes]
    width = len(clients)
    height = train.shape[1]
    place = min(room[0] / max(width, 1), room[1] / height, 24)  # points across
    areas = (0.95 * place) ** 2 * amounts / amounts.max(initial=1)
    axes.scatter(columns, classes, s=areas, color=TAB_BLUE, linewidths=0)
    step = max(1, width // labels)
    axes.set_xticks(np.arange(0, width, step), map(str, clients[::step]))
    axes.set_yticks(np.arange(0, height, max(1, height // labels)))
    axes.set(xlabel="client", ylabel="class", xlim=(-0.7, width - 0.3), ylim=(-0.7, height - 0.3))
    axes.spines[["top", "right"]].set_visible(False)
    return width, len(ids)


def _draw_sizes(axes: Axes, counts: Mapping[str, Ints]) -> None:
    """The number of samples of every client, from the smallest to the largest client of each split."""
    for split, per_class in counts.items():
        sizes = np.sort(per_class.sum(1))
        sizes = sizes[sizes > 0]
        if len(sizes):
            points = _spread(sizes, POINTS)
            axes.plot(np.linspace(0, 100, len(points)), points, drawstyle="steps-mid", label=split)
            if sizes[-1] > 20 * sizes[0]:
                axes.set_yscale("log")
    axes.set(xlabel="% of the clients, by size", ylabel="samples of a client", title="Sizes")
    axes.set_ylim(None if axes.get_yscale() == "log" else 0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _spread(values: Ints, most: int) -> Ints:
    """Values at equal distances, the first and the last among them, or all if they are few."""
    places = np.linspace(0, len(values) - 1, min(len(values), most)).astype(int)
    spread: Ints = values[places]
    return spread
