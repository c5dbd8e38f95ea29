"""Lines of curves over the rounds, or what these have cost, in print size."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lightning.report.compare_curves import Curves
from pfl_lightning.report.drawing import curves_figure, draw_curves
from pfl_lightning.report.measures import (
    ROUNDS,
    Cost,
    count_sums,
    evaluate_training,
    over_rounds,
    simulated_time,
)
from pfl_lightning.report.run_files import CALLS, COHORT

HEIGHT = 2.6  # inches of a row of panels


def time_figure(curves: Curves, communication_times: Sequence[float]) -> Figure:
    """Mean test score against simulated seconds, one panel for each communication time.

    Args:
        curves: Curves on the same data.
        communication_times: Simulated seconds that the communication of a round takes.

    Returns:
        Lines are means over the seeds at each evaluation, of the scores and of the times; bands are one sample standard
        deviation of the scores.
    """
    return cost_figure(curves, *map(simulated_time, communication_times))


def cost_figure(curves: Curves, *costs: Cost) -> Figure:
    """Mean test score against what was spent; see ``time_figure``.

    Args:
        curves: Curves that have the counts.
        costs: What was spent, one panel each.
    """
    score_kind = curves[0].score_kind
    scores = [score_kind.scale * curve.means for curve in curves]
    ylabel = f"test {score_kind.label}\nmean over clients"
    with curves_figure(curves, (3 * len(costs), HEIGHT), 1, len(costs), sharey=True) as (figure, (panels,)):
        for axes, cost in zip(panels, costs, strict=True):
            spent = [cost.of(curve) for curve in curves]
            size, unit = cost.unit(max(float(values.mean(0).max()) for values in spent))
            draw_curves(axes, curves, [values / size for values in spent], scores)
            axes.set(title=cost.title, xlabel=cost.axis.format(unit), ylabel=ylabel)
    return figure


def error_rounds_figure(curves: Curves) -> Figure:
    """Mean and 90th percentile of the clients' test errors, and training losses, against the cost of communication.

    Args:
        curves: Curves on the same data.

    Returns:
        The horizontal axis counts the weighted sums that the server asks for, each of which is a secure aggregation
        (Delta-FL, Figures 6 to 11), or rounds if no run counts sums. Training losses are weighted by samples. Lines
        are means over the seeds, bands one sample standard deviation; they may begin above the panel.
    """
    score_kind = curves[0].score_kind
    splits = {"test": (f"test {score_kind.error_label}", score_kind.scale)}
    if evaluate_training(curves):
        splits["train"] = ("training loss, weighted by samples", 1)
    sums = [curve.until(CALLS) for curve in curves]
    xlabel = "sums at the server" if count_sums(curves) else ROUNDS.axis
    rows = len(splits)
    with curves_figure(curves, (6, 0.4 + 2.2 * rows), rows, 2, sharex=True, sharey="row") as (figure, panels):
        for row, (split, (label, scale)) in zip(panels, splits.items(), strict=True):
            for axes, name in zip(row, ("mean", "p90"), strict=True):
                draw_curves(axes, curves, sums, [scale * over_rounds(curve, split, name) for curve in curves])
                axes.set(xlabel=xlabel, ylabel=label)
            _zoom(row)
        panels[0, 0].set_title("mean over clients")
        panels[0, 1].set_title("90th percentile of clients")
    return figure


def _zoom(row: Sequence[Axes]) -> None:
    """Fit the shared vertical axis to the lines without their first quarter, which would hide the differences."""
    lines = [np.asarray(line.get_xydata()) for axes in row for line in axes.lines]
    later = np.concatenate([line[line[:, 0] >= line[-1, 0] / 4, 1] for line in lines])
    later = later[np.isfinite(later)]
    if len(later):
        row[0].set_ylim(0.9 * later.min(), 1.1 * later.max() or 1)


def cohort_figure(curves: Curves) -> Figure:
    """Clients that trained in each round (Delta-FL, Figure 16).

    Args:
        curves: Curves that log their cohorts.

    Returns:
        Lines are means over the seeds, bands reach from the smallest to the largest.
    """
    rounds = [curve.cohorts.index.to_numpy()[None] for curve in curves]
    sizes = [curve.cohorts.to_numpy().T for curve in curves]
    with curves_figure(curves, (4, HEIGHT), 1, 1) as (figure, ((axes,),)):
        draw_curves(axes, curves, rounds, sizes, edges=lambda values: (values.min(0), values.max(0)))
        axes.set(xlabel=ROUNDS.axis, ylabel="clients that trained", ylim=(0, None))
    return figure


def cohorts_differ(curves: Curves) -> bool:
    """Whether the curves log their cohorts, and these differ by more than stage doubling."""
    if not all(curve.logs(COHORT) for curve in curves):
        return False
    return len({size for curve in curves if not curve.doubled for size in curve.cohorts.to_numpy().flat}) > 1
