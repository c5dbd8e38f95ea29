"""Mean scores of curves against time and other costs, in print size."""

from collections.abc import Callable, Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lightning.report.client_table import Floats
from pfl_lightning.report.compare_costs import TRAINING
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.compare_runs import BITS, COHORT, LINK_BITS
from pfl_lightning.report.drawing import draw_band, draw_line, fill_band, legend, legend_width, styles_of
from pfl_lightning.report.style import PRINT
from pfl_lightning.report.tables import bit_unit

ROUNDS_AXIS = "communication rounds"


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
            for curve, style in zip(curves, styles_of(curves), strict=True):
                draw_band(axes, curve.times(communication_time).mean(0), _scores(curve), style, curve.label)
            axes.set(title=f"{communication_time:g} s of communication per round", xlabel="simulated time (s)")
        legend(figure, panels[0])
    return figure


def rounds_figure(curves: Sequence[Curve]) -> Figure:
    """Mean test score against communication rounds; lines and bands as in ``time_figure``."""
    with rc_context(PRINT):
        figure, (axes,) = _panels(curves, 1)
        for curve, style in zip(curves, styles_of(curves), strict=True):
            draw_band(axes, curve.rounds, _scores(curve), style, curve.label)
        axes.set_xlabel(ROUNDS_AXIS)
        legend(figure, axes)
    return figure


def bits_figure(curves: Sequence[Curve]) -> Figure:
    """Mean test score against what was communicated; lines and bands as in ``time_figure``.

    Args:
        curves: Curves that count bits.

    Returns:
        Left, the bits of all clients as they are encoded; right, those of one client by the formula of FedMac's paper
        (Liu et al., arXiv:2107.05330, Figure 6).
    """
    with rc_context(PRINT):
        figure, panels = _panels(curves, 2)
        titles = "all clients, as encoded", "one client, 64 bits a value"
        for axes, tag, title in zip(panels, (BITS, LINK_BITS), titles, strict=True):
            unit = _draw_counts(axes, curves, [curve.until(tag) for curve in curves], bit_unit)
            axes.set(title=title, xlabel=f"communication ({unit})")
        legend(figure, panels[0])
    return figure


def training_figure(curves: Sequence[Curve]) -> Figure:
    """Mean test score against the samples that all clients took gradients of; lines and bands as in ``time_figure``."""
    with rc_context(PRINT):
        figure, (axes,) = _panels(curves, 1)
        unit = _draw_counts(axes, curves, [TRAINING.of(curve) for curve in curves], TRAINING.unit)
        axes.set_xlabel(f"training, all clients and epochs ({unit})")
        legend(figure, axes)
    return figure


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


def _panels(curves: Sequence[Curve], number: int) -> tuple[Figure, list[Axes]]:
    quantity = curves[0].quantity
    figure = Figure(figsize=(3 * number + legend_width(curves), max(2.6, 0.2 * len(curves))), layout="constrained")
    panels = list(figure.subplots(1, number, sharey=True, squeeze=False)[0])
    panels[0].set_ylabel(f"test {quantity.name}{quantity.unit}\nmean over clients")
    return figure, panels


def _draw_counts(
    axes: Axes, curves: Sequence[Curve], counts: Sequence[Floats], unit_of: Callable[[float], tuple[float, str]]
) -> str:
    """Draw scores against counts, ``[seeds, evaluations]``, as means over the seeds in a readable unit; return it."""
    means = [count.mean(0) for count in counts]
    size, unit = unit_of(max(float(mean.max()) for mean in means))
    for curve, mean, style in zip(curves, means, styles_of(curves), strict=True):
        draw_band(axes, mean / size, _scores(curve), style, curve.label)
    return unit


def _scores(curve: Curve) -> Floats:
    """Mean score of the clients in the unit of the axis, ``[seeds, evaluations]``."""
    return curve.quantity.scale * curve.means
