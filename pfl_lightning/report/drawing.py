"""Lines of curves with bands, their legend, and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.report.client_table import Floats
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.style import looks_of

APART = 0.12  # from one marker of a line to the next, as a share of the panel's diagonal
FILES: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "pfl", "pdf.fonttype": 42}  # text stays text
UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def styles_of(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Looks of the lines, which are those of the methods."""
    return looks_of([curve.label for curve in curves], [curve.family for curve in curves])


def draw_band(axes: Axes, x: NDArray[Any], values: Floats, style: dict[str, Any], label: str) -> None:
    """Draw the mean over the seeds, and where there are several a band of one sample standard deviation.

    Args:
        axes: Where to draw.
        x: Positions, ``[points]``.
        values: Values in the unit of the axis, ``[seeds, points]``.
        style: The look of the line.
        label: Its name in a legend.
    """
    middle = values.mean(0)
    draw_line(axes, x, middle, style, label)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        fill_band(axes, x, middle - spread, middle + spread, style)


def draw_line(axes: Axes, x: NDArray[Any], y: NDArray[Any], style: dict[str, Any], label: str) -> None:
    """Draw a line; the markers tell it from others, and those of different lines are at different places."""
    first = APART * (len(axes.lines) % 4) / 4
    axes.plot(x, y, label=label, markevery=(first, APART), **style)


def fill_band(axes: Axes, x: NDArray[Any], low: Floats, high: Floats, style: dict[str, Any]) -> None:
    """Fill a band so faintly that others can be seen through it; thin edges in the line's style say whose it is."""
    face, edge = to_rgba(style["color"], 0.1), to_rgba(style["color"], 0.5)
    look = {"facecolor": face, "edgecolor": edge, "linewidth": 0.5, "linestyle": style.get("linestyle", "-")}
    axes.fill_between(x, low, high, **look)


def legend(figure: Figure, axes: Axes) -> None:
    """Name the curves of a panel to the right of all panels."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def legend_width(curves: Sequence[Curve]) -> float:
    """Inches that the legend takes."""
    return 0.95 + 0.065 * max(len(curve.label) for curve in curves)


def save_figure(figure: Figure, *paths: Path, dpi: int = 200) -> None:
    """Write a figure in the formats that the files' endings say; the same figure gives the same files.

    Args:
        figure: The figure.
        paths: The files.
        dpi: Pixels per inch, of formats that have pixels.
    """
    with rc_context(FILES):
        figure.set_dpi(dpi)
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # or savefig would lay out the figure again, for each file
        for path in paths:
            figure.savefig(path, dpi=dpi, metadata=UNDATED.get(path.suffix.lower()))
