"""Figures with a line for each curve, and files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.report.compare_curves import Curve, Curves
from pfl_lightning.report.run_files import Floats
from pfl_lightning.report.style import PRINT, looks_of

APART = 0.12  # from one marker of a line to the next, as a share of the panel's diagonal
FILES: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "pfl", "pdf.fonttype": 42}  # text stays text
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}

Style = dict[str, Any]


class Panel(NamedTuple):
    """A panel of a figure that has a line for each curve.

    Attributes:
        draw: Draws a curve in its look.
        texts: Title, labels of the axes and their limits, as ``Axes.set`` takes them.
    """

    draw: Callable[[Axes, Curve, Style], None]
    texts: Mapping[str, Any]


def curves_figure(curves: Curves, rows: Sequence[Sequence[Panel]], size: tuple[float, float], **shared: Any) -> Figure:
    """Draw all curves into every panel, and name them to the right of all panels.

    Args:
        curves: The curves.
        rows: The panels, from the top left to the bottom right.
        size: Width of all panels and height, in inches.
        shared: Axes that panels share, as ``Figure.subplots`` takes them.
    """
    legend = 0.95 + 0.065 * max(len(curve.label) for curve in curves)
    with grid(size[0] + legend, size[1], len(rows), len(rows[0]), **shared) as (figure, panels):
        for axes, panel in zip(panels.flat, [panel for row in rows for panel in row], strict=True):
            for curve, style in zip(curves, styles_of(curves), strict=True):
                panel.draw(axes, curve, style)
            axes.set(**panel.texts)
            if all(np.equal(np.mod(line.get_xdata(), 1), 0).all() for line in axes.lines):  # counts, such as rounds
                axes.locator_params(axis="x", integer=True)
            if shared:
                axes.label_outer()
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


def bands(x: Callable[[Curve], Floats], values: Callable[[Curve], Floats]) -> Callable[[Axes, Curve, Style], None]:
    """Draw values of curves as ``draw_band`` does, at the means of their positions ``[seeds, points]``."""
    return lambda axes, curve, style: draw_band(axes, x(curve).mean(0), values(curve), style, curve.label)


@contextmanager
def grid(width: float, height: float, rows: int, columns: int, **shared: Any) -> Iterator[tuple[Figure, NDArray[Any]]]:
    """A figure in print size and its panels ``[rows, columns]``, in whose style is drawn until the block ends.

    Args:
        width: In inches.
        height: In inches.
        rows: Number of rows of panels.
        columns: Number of columns.
        shared: Axes that panels share, as ``Figure.subplots`` takes them.
    """
    with rc_context(PRINT):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **shared)


def styles_of(curves: Curves) -> list[Style]:
    """Looks of the lines, which are those of the methods."""
    return looks_of([curve.label for curve in curves], [curve.family for curve in curves])


def draw_band(axes: Axes, x: NDArray[Any], values: Floats, style: Style, label: str) -> None:
    """Draw the mean over the seeds, and where there are several a band of one sample standard deviation.

    Args:
        axes: Where to draw.
        x: Positions, ``[points]``.
        values: Values in the unit of the axis, ``[seeds, points]``.
        style: The look of the line.
        label: Its name in a legend.
    """
    values = np.where(np.isfinite(values), values, np.nan)  # a line has no points where a seed is not finite
    middle = values.mean(0)
    draw_line(axes, x, middle, style, label)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        fill_band(axes, x, middle - spread, middle + spread, style)


def draw_line(axes: Axes, x: NDArray[Any], y: NDArray[Any], style: Style, label: str) -> None:
    """Draw a line; the markers tell it from others, and those of different lines are at different places."""
    is_line = np.isfinite(x + y).sum() > 1  # and no single point, which has its own marker
    marked = (APART * (len(axes.lines) % 4) / 4, APART) if is_line else None
    axes.plot(x, y, label=label, markevery=marked, **style)


def fill_band(axes: Axes, x: NDArray[Any], low: Floats, high: Floats, style: Style) -> None:
    """Fill a band so faintly that others can be seen through it; thin edges in the line's style say whose it is."""
    color = style["color"]
    edges = {"edgecolor": to_rgba(color, 0.5), "linewidth": 0.5, "linestyle": style.get("linestyle", "-")}
    axes.fill_between(x, low, high, facecolor=to_rgba(color, 0.1), **edges)


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
