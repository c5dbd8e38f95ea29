"""The look of figures, figures with a line for each curve, and files."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, product
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context, rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.report.compare_curves import Curves
from pfl_lightning.report.run_files import Floats

APART = 0.12  # from one marker of a line to the next, as a share of the panel's diagonal
FILES: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "pfl", "pdf.fonttype": 42}  # text stays text
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}

NAME_WIDTH = 34  # characters of a line in a legend
LINE_HEIGHT = 0.2  # inches of it

Style = dict[str, Any]
PRINT: dict[Any, Any] = rc_params_from_file(Path(__file__).with_name("print.mplstyle"), use_default_template=False)
COLORS: tuple[str, ...] = tuple(PRINT["axes.prop_cycle"].by_key()["color"])
# a card of TensorBoard's page is about 310 pixels wide
CARD: dict[Any, Any] = {**PRINT, "font.size": 13, "axes.titlesize": 13, "lines.linewidth": 2}
CARD_SIZE = (4.5, 3.4)  # inches


class Look(NamedTuple):
    """What tells a method from others; without colours, its marker does.

    Attributes:
        color: Colour of line, marker and band.
        marker: Shape of the marker.
        filled: Whether the marker is filled, or open.
    """

    color: str
    marker: str | tuple[int, int, int]
    filled: bool


SHAPES = "DsPv^Xo<>h"  # of each colour
PAIRS = (  # methods that share a colour, as they are rarely in one figure: with filled and with open markers
    ("FedRep", "LinearFedRep"),
    ("FedAvg-FT", "FedBABU"),
    ("Ditto", "Per-FedAvg"),
    ("HF-MAML", "DisPFL"),
    ("LG-FedAvg", "FedRoD"),
    ("pFedMe", "D-PSGD"),
    ("FedAvg", "Local"),
    ("FedMac", "Delta-FL"),
    ("HeurFedAMP", "FedAMP"),
    ("DePRL", "FedProx"),
)
LOOKS = {
    name: Look(color, shape, filled)
    for color, shape, pair in zip(COLORS, SHAPES, PAIRS, strict=True)
    for name, filled in zip(pair, (True, False), strict=True)
}
SPARE_SHAPES: Sequence[str | tuple[int, int, int]] = (
    "*",
    "d",
    "p",
    (4, 1, 0),
    (3, 1, 0),
)  # the last two are stars with four and three points
SPARE_LOOKS = [
    Look(color, shape, filled)
    for color, (shape, filled) in zip(COLORS, product(SPARE_SHAPES, (True, False)), strict=True)
]


def looks_of(labels: Sequence[str], families: Sequence[str] | None = None) -> list[Style]:
    """How to draw some methods: the same in every figure, whatever else is in it.

    Args:
        labels: Their names, such as ``FedRep-SRPFL``.
        families: The same without stage doubling; by default none of them doubles. Those that are not in ``LOOKS``,
            such as own methods or variants with other settings, take looks that are left, in the order in which they
            come. Looks repeat only from the 31st family on.

    Returns:
        Options of matplotlib's lines for each label. With stage doubling, a method has its colour and shape, but its
        line is dashed, and its marker open where it was filled.
    """
    families = families or labels
    used = [LOOKS[family] for family in families if family in LOOKS]
    colors = [look.color for look in used]
    # first those in unused colours, and filled markers before open ones
    methods_looks = sorted(LOOKS.values(), key=lambda look: (look.color in colors, not look.filled))
    free = cycle(sorted([*methods_looks, *SPARE_LOOKS], key=lambda look: look in used))
    looks = {family: LOOKS.get(family) or next(free) for family in dict.fromkeys(families)}
    return [
        {
            "color": looks[family].color,
            "marker": looks[family].marker,
            "markerfacecolor": looks[family].color if looks[family].filled == (family == label) else "white",
            "linestyle": "-" if family == label else "--",
        }
        for label, family in zip(labels, families, strict=True)
    ]


def styles_of(curves: Curves) -> list[Style]:
    """Looks of the lines, which are those of the methods."""
    return looks_of([curve.name for curve in curves], [curve.family for curve in curves])


@contextmanager
def curves_figure(
    curves: Curves, size: tuple[float, float], rows: int, columns: int, **shared: Any
) -> Iterator[tuple[Figure, NDArray[Any]]]:
    """A figure of lines, one for each curve, and its panels ``[rows, columns]``, which are filled until the block ends.

    Then the curves are named to the right of all panels, or below them if there are too many for that.

    Args:
        curves: The curves.
        size: Width of all panels and height, in inches.
        rows: Number of rows of panels.
        columns: Number of columns.
        shared: Axes that panels share, as ``Figure.subplots`` takes them.
    """
    width, height = size
    names = [fill(curve.label, NAME_WIDTH, break_long_words=False) for curve in curves]
    lines = sum(name.count("\n") + 1 for name in names)
    entry = 0.95 + 0.065 * max(len(line) for name in names for line in name.split("\n"))
    is_beside = lines * LINE_HEIGHT <= height
    if is_beside:
        width += entry
        place: Style = {"loc": "outside right center"}
    else:
        width = max(width, 2 * entry)
        place = {"loc": "outside lower center", "ncols": int(width // entry)}
        height += LINE_HEIGHT * lines / place["ncols"]
    with grid(width, height, rows, columns, **shared) as (figure, panels):
        yield figure, panels
        for axes in panels.flat:
            if not any(np.mod(line.get_xdata(), 1).any() for line in axes.lines):  # counts, such as rounds
                axes.locator_params(axis="x", integer=True)
            if shared:
                axes.label_outer()
        handles, _ = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, **place)


def deviation(values: Floats) -> tuple[Floats, Floats]:
    """One sample standard deviation over the seeds below and above the mean, ``[points]`` each."""
    middle = values.mean(0)
    spread = values.std(0, ddof=1)
    return middle - spread, middle + spread


Edges = Callable[[Floats], tuple[Floats, Floats]]


def draw_curves(
    axes: Axes, curves: Curves, positions: Sequence[Floats], values: Sequence[Floats], edges: Edges = deviation
) -> None:
    """Draw values of each curve ``[seeds, points]`` as ``draw_band`` does, at the means over the seeds of positions."""
    for curve, style, x, y in zip(curves, styles_of(curves), positions, values, strict=True):
        draw_band(axes, x.mean(0), y, style, curve.label, edges)


def draw_band(axes: Axes, x: NDArray[Any], values: Floats, style: Style, label: str, edges: Edges = deviation) -> None:
    """Draw the mean over the seeds, and where there are several a band so faint that others are seen through it.

    Args:
        axes: Where to draw.
        x: Positions, ``[points]``.
        values: Values in the unit of the axis, ``[seeds, points]``.
        style: The look of the line.
        label: Its name in a legend.
        edges: Lower and upper end of the band, ``[points]`` each.
    """
    values = np.where(np.isfinite(values), values, np.nan)  # a line has no points where a seed is not finite
    middle = values.mean(0)
    is_line = np.isfinite(x + middle).sum() > 1  # and no single point, which has its own marker
    # the markers tell a line from others, and those of different lines are at different places
    marked = (APART * (len(axes.lines) % 4) / 4, APART) if is_line else None
    (line,) = axes.plot(x, middle, label=label, markevery=marked, **style)
    if len(values) > 1:
        low, high = edges(values)
        color = line.get_color()
        band = axes.fill_between(x, low, high, facecolor=to_rgba(color, 0.1), edgecolor=to_rgba(color, 0.5))
        band.set(linewidth=0.5, linestyle=line.get_linestyle())


@contextmanager
def grid(
    width: float, height: float, rows: int, columns: int, style: dict[Any, Any] = PRINT, **shared: Any
) -> Iterator[tuple[Figure, NDArray[Any]]]:
    """A figure and its panels ``[rows, columns]``, in whose style is drawn until the block ends.

    Args:
        width: In inches.
        height: In inches.
        rows: Number of rows of panels.
        columns: Number of columns.
        style: Settings of matplotlib, of figures in print size or of a ``CARD``.
        shared: Axes that panels share, as ``Figure.subplots`` takes them.
    """
    with rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **shared)


def save_figure(figure: Figure, *paths: Path, dpi: int = 200) -> None:
    """Write a figure in the formats that the files' endings say; the same figure gives the same files.

    Args:
        figure: The figure.
        paths: The files.
        dpi: Pixels per inch, of formats that have pixels.
    """
    with rc_context(FILES):
        figure.set_dpi(dpi)
        if engine := figure.get_layout_engine():
            engine.execute(figure)
        figure.set_layout_engine(None)  # or savefig would lay out the figure again, for each file
        for path in paths:
            figure.savefig(path, dpi=dpi, metadata=UNDATED.get(path.suffix.lower()))
