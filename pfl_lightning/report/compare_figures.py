"""Figures of curves, in print size; a method and its variant with stage doubling share a colour."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.style import COLORS, PRINT

MARKERS = "osD^v"  # one for every eight families
BINS = 20  # of a histogram


def time_figure(curves: Sequence[Curve], communication_times: Sequence[float]) -> Figure:
    """Mean test score against simulated seconds, one panel for each communication time.

    Args:
        curves: Curves on the same data.
        communication_times: Simulated seconds that the communication of a round takes.

    Returns:
        Lines are means over the seeds at each evaluation, of the scores and of the times; bands are one sample standard
        deviation of the scores.
    """
    with rc_context(PRINT):
        figure, panels = _panels(curves, len(communication_times))
        for axes, communication_time in zip(panels, communication_times, strict=True):
            for curve, style in zip(curves, _styles(curves), strict=True):
                _draw(axes, curve, curve.times(communication_time).mean(0), style)
            axes.set(title=f"communication time {communication_time:g} s", xlabel="simulated time (s)")
        _legend(figure, panels[0])
    return figure


def rounds_figure(curves: Sequence[Curve]) -> Figure:
    """Mean test score against communication rounds; lines and bands as in ``time_figure``."""
    with rc_context(PRINT):
        figure, (axes,) = _panels(curves, 1)
        for curve, style in zip(curves, _styles(curves), strict=True):
            _draw(axes, curve, curve.rounds, style)
        axes.set_xlabel("communication rounds")
        _legend(figure, axes)
    return figure


def clients_figure(curves: Sequence[Curve]) -> Figure:
    """Histograms of the clients' final test errors, or losses, one row for each curve.

    Args:
        curves: Curves on the same data.

    Returns:
        Each client's error is its mean over the seeds (Delta-FL, Figures 4, 12 and 13).
    """
    quantity = curves[0].quantity
    errors = [quantity.scale * quantity.errors(np.mean(curve.final_scores, axis=0)) for curve in curves]
    bins = np.linspace(0, max(quantity.scale / 100, *map(np.max, errors)), BINS + 1)
    with rc_context(PRINT):
        figure = Figure(figsize=(4.5, 0.5 + 1.1 * len(curves)), layout="constrained")
        rows = figure.subplots(len(curves), sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, curve, values, style in zip(rows, curves, errors, _styles(curves), strict=True):
            axes.hist(values, bins, color=style["color"], alpha=0.8)
            mean, p90 = values.mean(), np.percentile(values, 90)
            axes.axvline(mean, color="black", linestyle="--", linewidth=1)
            axes.axvline(p90, color="black", linestyle=":", linewidth=1)
            axes.set_title(f"{curve.label}: mean {mean:.3g} (dashed), p90 {p90:.3g} (dotted)", loc="left")
        rows[-1].set_xlabel(f"final test {quantity.error_name}{quantity.unit} of a client")
        figure.supylabel("clients", fontsize="medium")
    return figure


def _panels(curves: Sequence[Curve], number: int) -> tuple[Figure, list[Axes]]:
    quantity = curves[0].quantity
    for_legend = 0.8 + 0.065 * max(len(curve.label) for curve in curves)
    figure = Figure(figsize=(3 * number + for_legend, max(2.6, 0.2 * len(curves))), layout="constrained")
    panels = list(figure.subplots(1, number, sharey=True, squeeze=False)[0])
    panels[0].set_ylabel(f"mean test {quantity.name}{quantity.unit}")
    return figure, panels


def _styles(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """A colour for each family; dashed where doubling is compared with none."""
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


def _draw(axes: Axes, curve: Curve, x: NDArray[Any], style: dict[str, Any]) -> None:
    """The mean over the seeds, and where there are several its band."""
    means = curve.quantity.scale * curve.means
    middle = means.mean(0)
    axes.plot(x, middle, label=curve.label, **style)
    if len(means) > 1:
        spread = means.std(0, ddof=1)
        axes.fill_between(x, middle - spread, middle + spread, color=style["color"], alpha=0.15, linewidth=0)


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
