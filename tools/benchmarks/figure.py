"""What was measured, as bars."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.timing import Record
from benchmarks.variants import VARIANTS
from pfl_lightning.report.drawing import COLORS, grid

BACKENDS = {"auto": COLORS[0], "sequential": COLORS[5], "batched": COLORS[4]}
OURS = COLORS[0]
PEER = "#999999"
THICK = 0.82  # of a bar, where bars are 1 apart
GAP = 0.7  # between two workloads
INCHES = 0.125  # from one bar to the next


def ratio_figure(records: Sequence[Record]) -> Figure:
    """Ratios to the plain loop, on a logarithmic axis; bars to the left of the line are faster.

    Args:
        records: Those without a ratio to a plain loop are left out, and so are plain loops and variants.

    Returns:
        Workloads from top to bottom; of each the best value is written beside its bar. Peers have a row each.
    """
    rows = [row for row in records if row["ratio_to_plain"] is not None]
    rows = [row for row in rows if not row["backend"].startswith(("plain", *VARIANTS))]
    names = [row["workload"] for row in rows]
    places = [place + GAP * len(set(names[: place + 1])) for place in range(len(rows))]
    best = {name: min(row["ratio_to_plain"] for row in rows if row["workload"] == name) for name in names}
    with grid(7, 0.9 + INCHES * max(places, default=0), 1, 1) as (figure, ((axes,),)):
        for place, row in zip(places, rows, strict=True):
            name = row["workload"]
            ratio = row["ratio_to_plain"]
            peer = row["backend"] not in BACKENDS
            color = BACKENDS.get(row["backend"], OURS if row["backend"] == "ours" else PEER)
            bar = axes.barh(place, ratio - 1, THICK, left=1, color=color)
            axes.bar_label(bar, [f"{ratio:.2f}" if peer or ratio == best[name] else ""], padding=3, fontsize=8)
        labels = [
            f"{row['workload']}: {row['backend']}" if row["backend"] not in BACKENDS else row["workload"]
            for row in rows
        ]
        first = [place for place, label in enumerate(labels) if label not in labels[:place]]
        axes.set_yticks([places[place] for place in first], [labels[place] for place in first])
        finish(axes, max(places, default=0), [row["ratio_to_plain"] for row in rows])
        used = [name for name in BACKENDS if any(row["backend"] == name for row in rows)]
        patches = [Patch(color=BACKENDS[name], label=name) for name in used]
        figure.legend(handles=patches, loc="outside upper center", ncols=len(BACKENDS))
    return figure


def finish(axes: Axes, height: float, ratios: Sequence[float]) -> None:
    """The line, and the axis."""
    axes.set_xscale("log")
    axes.set_xlim(0.75 * min([0.9, *ratios]), 1.3 * max([1.1, *ratios]))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(height + 0.7, -0.1)
    axes.axvline(1, color="black", linewidth=1)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds / the plain loop's, or the library's (the line): faster to the left")
