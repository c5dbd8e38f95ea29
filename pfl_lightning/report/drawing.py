"""Lines of curves; a method and its variant with stage doubling share a colour."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.report.client_table import Floats
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.style import COLORS

MARKERS = "osD^v"  # one for every eight families


def styles_of(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Looks of the lines: a colour for each family; dashed where doubling is compared with none."""
    families = list(dict.fromkeys(curve.family for curve in curves))
    any_doubled = any(curve.doubled for curve in curves)
    indices = [families.index(curve.family) for curve in curves]
    return [
        {
            "color": COLORS[index % len(COLORS)],
            "marker": MARKERS[index // len(COLORS) % len(MARKERS)],
            "linestyle": "--" if any_doubled and not curve.doubled else "-",
        }
        for index, curve in zip(indices, curves, strict=True)
    ]


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
    axes.plot(x, middle, label=label, **style)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(x, middle - spread, middle + spread, color=style["color"], alpha=0.15, linewidth=0)


def legend(figure: Figure, axes: Axes) -> None:
    """Name the curves of a panel to the right of all panels."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def legend_width(curves: Sequence[Curve]) -> float:
    """Inches that the legend takes."""
    return 0.8 + 0.065 * max(len(curve.label) for curve in curves)
