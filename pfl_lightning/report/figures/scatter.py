"""The clients' scores against their numbers of samples, as in Delta-FL (arXiv:2002.11223, Figure 5)."""

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from pfl_lightning.report.run_files import Floats, Ints
from pfl_lightning.report.style import CARD, CARD_SIZE, COLORS
from pfl_lightning.score_kind import ScoreKind

CROWD = 300  # clients; of more, the points are smaller and paler


def scatter_axes(axes: Axes, samples: Ints, values: Floats, color: str = COLORS[0]) -> None:
    """Draw a point for each client, with lines at the mean (dashed) and the 90th percentile (dotted) of the clients.

    Args:
        axes: Where to draw; the horizontal axis becomes logarithmic.
        samples: Number of samples of each client, ``[clients]``.
        values: Error or loss of each client, in the unit of the axis, ``[clients]``.
        color: Colour of the points.
    """
    size, alpha = (14, 0.6) if len(values) <= CROWD else (6, 0.4)
    axes.scatter(samples, values, s=size, color=color, alpha=alpha, linewidths=0, clip_on=False)
    mean = float(np.mean(values))
    p90 = float(np.percentile(values, 90))
    axes.axhline(mean, color="black", linestyle="--", linewidth=1, label=f"mean {mean:.3g}")
    axes.axhline(p90, color="black", linestyle=":", linewidth=1, label=f"p90 {p90:.3g}")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if samples.max() > 200 * samples.min() else (1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=0)


def scatter_figure(samples: Ints, scores: Floats, score_kind: ScoreKind, split: str) -> Figure:
    """The errors, or losses, of the clients of a run against their numbers of samples.

    Args:
        samples: Number of samples of each client, ``[clients]``.
        scores: Score of each client, ``[clients]``.
        score_kind: What clients are evaluated by.
        split: Name of the split, such as ``test``.
    """
    with rc_context(CARD):
        figure = Figure(figsize=CARD_SIZE, layout="constrained")
        axes = figure.subplots()
        scatter_axes(axes, samples, score_kind.scale * score_kind.errors(scores))
        axes.set(xlabel=f"{split} samples of a client", ylabel=f"{split} {score_kind.error_label}")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, borderaxespad=0, columnspacing=1)
    return figure
