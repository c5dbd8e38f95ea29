"""Mean scores of curves against time and other costs, in print size."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from pfl_lightning.report.client_table import Floats
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.compare_runs import BITS, COHORT, LINK_BITS, SAMPLES
from pfl_lightning.report.drawing import draw_band, draw_line, fill_band, legend, legend_width, styles_of
from pfl_lightning.report.style import PRINT
from pfl_lightning.report.tables import bit_unit, sample_unit

ROUNDS_AXIS = "communication rounds"


class Panel(NamedTuple):
    """What a panel shows scores against.

    Attributes:
        xlabel: Name of the horizontal axis.
        costs: What each evaluation has cost in the unit of the axis, for each curve, ``[evaluations]``.
        title: Name of the panel.
    """

    xlabel: str
    costs: Sequence[Floats]
    title: str = ""


def score_figure(curves: Sequence[Curve], *panels: Panel) -> Figure:
    """Mean test score against what it has cost.

    Args:
        curves: Curves on the same data.
        panels: The panels from left to right, which share the vertical axis.

    Returns:
        Lines are means over the seeds at each evaluation, of the scores and of the costs; bands are one sample standard
        deviation of the scores.
    """
    quantity = curves[0].quantity
    with rc_context(PRINT):
        size = (3 * len(panels) + legend_width(curves), max(2.6, 0.2 * len(curves)))
        figure = Figure(figsize=size, layout="constrained")
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(row, panels, strict=True):
            for curve, costs, style in zip(curves, panel.costs, styles_of(curves), strict=True):
                draw_band(axes, costs, quantity.scale * curve.means, style, curve.label)
            axes.set(title=panel.title, xlabel=panel.xlabel)
        row[0].set_ylabel(f"test {quantity.name}{quantity.unit}\nmean over clients")
        legend(figure, row[0])
    return figure


def time_figure(curves: Sequence[Curve], communication_times: Sequence[float]) -> Figure:
    """Mean test score against simulated seconds, one panel for each communication time; see ``score_figure``.

    Args:
        curves: Curves on the same data.
        communication_times: Simulated seconds that the communication of a round takes.
    """
    panels = [
        Panel(
            "simulated time (s)",
            [curve.times(time).mean(0) for curve in curves],
            f"{time:g} s of communication per round",
        )
        for time in communication_times
    ]
    return score_figure(curves, *panels)


def rounds_figure(curves: Sequence[Curve]) -> Figure:
    """Mean test score against communication rounds; see ``score_figure``."""
    return score_figure(curves, Panel(ROUNDS_AXIS, [curve.rounds.astype(float) for curve in curves]))


def bits_figure(curves: Sequence[Curve]) -> Figure:
    """Mean test score against what was communicated; see ``score_figure``.

    Args:
        curves: Curves that count bits.

    Returns:
        Left, the bits of all clients as they are encoded; right, those of one client by the formula of FedMac's paper
        (Liu et al., arXiv:2107.05330, Figure 6).
    """
    titles = {BITS: "all clients, as encoded", LINK_BITS: "one client, 64 bits a value"}
    panels = [_counted(curves, tag, "communication", bit_unit, title) for tag, title in titles.items()]
    return score_figure(curves, *panels)


def training_figure(curves: Sequence[Curve]) -> Figure:
    """Mean test score against the samples that all clients took gradients of; see ``score_figure``."""
    return score_figure(curves, _counted(curves, SAMPLES, "training, all clients and epochs", sample_unit))


def _counted(
    curves: Sequence[Curve], tag: str, what: str, unit_of: Callable[[float], tuple[float, str]], title: str = ""
) -> Panel:
    """A panel of a logged count in a readable unit."""
    counts = [curve.until(tag).mean(0) for curve in curves]
    size, unit = unit_of(max(float(count.max()) for count in counts))
    return Panel(f"{what} ({unit})", [count / size for count in counts], title)


def cohort_figure(curves: Sequence[Curve]) -> Figure:
    """Clients that trained in each round (Delta-FL, Figure 16).

    Args:
        curves: Curves that log their cohorts.

    Returns:
        Lines are means over the seeds, bands reach from the smallest to the largest.
    """
    with rc_context(PRINT):
        figure = Figure(figsize=(4 + legend_width(curves), max(2.6, 0.2 * len(curves))), layout="constrained")
        axes = figure.subplots()
        for curve, style in zip(curves, styles_of(curves), strict=True):
            rounds, sizes = curve.cohorts
            draw_line(axes, rounds, sizes.mean(0), style, curve.label)
            if len(sizes) > 1:
                fill_band(axes, rounds, sizes.min(0), sizes.max(0), style)
        axes.set(xlabel=ROUNDS_AXIS, ylabel="clients that trained", ylim=(0, None))
        legend(figure, axes)
    return figure


def cohorts_differ(curves: Sequence[Curve]) -> bool:
    """Whether the curves log their cohorts, and these differ by more than stage doubling."""
    if not all(COHORT in run.logged for curve in curves for run in curve.runs):
        return False
    return len({size for curve in curves if not curve.doubled for size in curve.cohorts[1].flat}) > 1
