"""What was measured, as bars."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.timing import Record
from benchmarks.variants import VARIANTS
from pfl_lightning.report.drawing import grid
from pfl_lightning.report.style import COLORS

BACKENDS = {"auto": COLORS[0], "sequential": COLORS[5], "batched": COLORS[4]}
OURS, PEER = COLORS[0], "#999999"
THICK, GAP = 0.82, 0.7  # of a bar, and between two workloads, where bars are 1 apart
INCHES = 0.125  # from one bar to the next


def ratio_figure(records: Sequence[Record]) -> Figure:
    """Ratios to the plain loop, on a logarithmic axis; bars to the left of the line are faster.

    Args:
        records: Those without a ratio to a plain loop are left out, and so are plain loops and variants.

    Returns:
        Workloads from top to bottom; of each the best value is written beside its bar. Peers have a row each, from the
        fastest to the slowest.
    """
    groups = grouped(records)
    drawn = [row for rows in groups.values() for row in rows]
    with grid(7, 0.9, 1, 1) as (figure, ((axes,),)):
        height = draw_groups(axes, groups)
        figure.set_figheight(0.9 + INCHES * height)
        finish(axes, height, [row["ratio_to_plain"] for row in drawn])
        used = [name for name in BACKENDS if any(row["backend"] == name for row in drawn)]
        patches = [Patch(color=BACKENDS[name], label=name) for name in used]
        figure.legend(handles=patches, loc="outside upper center", ncols=len(BACKENDS))
    return figure


def grouped(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records that are drawn, by workload."""
    left_out = ("plain", *VARIANTS)
    drawn = [row for row in records if row["ratio_to_plain"] is not None and not row["backend"].startswith(left_out)]
    groups = {row["workload"]: [one for one in drawn if one["workload"] == row["workload"]] for row in drawn}
    return {
        name: sorted(rows, key=lambda row: row["ratio_to_plain"]) if is_peer(rows[0]) else rows
        for name, rows in groups.items()
    }


def is_peer(row: Record) -> bool:
    """Whether the record is of another library's program, or of ours beside those."""
    return row["backend"] not in BACKENDS


def draw_groups(axes: Axes, groups: Mapping[str, Sequence[Record]]) -> float:
    """Bars from the top downwards, with the names of the workloads, and of peers, at the side.

    Returns:
        Where the last bar ends.
    """
    top, ticks = 0.0, {}
    for name, rows in groups.items():
        peers = is_peer(rows[0])
        ticks[top if peers else top + (len(rows) - 1) / 2] = name
        top += 1.3 * peers  # beneath the name
        best = min(row["ratio_to_plain"] for row in rows)
        for place, row in enumerate(rows):
            draw_bar(axes, top + place, row, peers or row["ratio_to_plain"] == best)
            if peers:
                ticks[top + place] = row["backend"].replace("_", "-")
        top += len(rows) + GAP
    axes.set_yticks(list(ticks), list(ticks.values()))
    names = {row["backend"].replace("_", "-") for rows in groups.values() for row in rows if is_peer(row)}
    for label in axes.get_yticklabels():
        if label.get_text() in names:
            label.set(fontsize=8, color="#555555")
    return top - GAP


def draw_bar(axes: Axes, place: float, row: Record, labelled: bool) -> None:
    """One bar from the plain loop's line to the ratio, and the ratio as a number."""
    ratio = row["ratio_to_plain"]
    axes.barh(
        place, ratio - 1, THICK, left=1, color=BACKENDS.get(row["backend"], OURS if row["backend"] == "ours" else PEER)
    )
    if labelled:
        offset, side = ((-3, 0), "right") if ratio <= 1 else ((3, 0), "left")
        text = axes.annotate(f"{ratio:.2f}", (ratio, place), offset, textcoords="offset points", va="center_baseline")
        text.set(ha=side, fontsize=8)


def finish(axes: Axes, height: float, ratios: Sequence[float]) -> None:
    """The line, and the axis."""
    axes.set_xscale("log")
    axes.set_xlim(0.75 * min([0.9, *ratios]), 1.3 * max([1.1, *ratios]))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(height - 0.3, -0.8)
    axes.axvline(1, color="black", linewidth=1)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds / the plain loop's, or the library's (the line): faster to the left")
