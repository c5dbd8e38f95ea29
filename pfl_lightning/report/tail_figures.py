"""Figures of the tail: who is served badly, what it costs to serve them, and what clients choose."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lightning.report.choice import Choice
from pfl_lightning.report.client_table import Floats
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.drawing import draw_band, legend, legend_width, styles_of
from pfl_lightning.report.style import PRINT
from pfl_lightning.report.tails import TEST, count_sums, evaluate_training, over_rounds, reference_of

PERCENTILES = np.linspace(0, 100, 101)
GREY = "#999999"


def tail_figure(curves: Sequence[Curve]) -> Figure:
    """Who is served badly, and what it costs to serve them.

    Args:
        curves: Curves on the same data.

    Returns:
        Left, the final test errors (or losses) of the clients from the smallest to the largest. Right, their mean
        against their 90th percentile; the grey lines go through the reference. Bands and bars are one sample standard
        deviation over the seeds.
    """
    quantity = curves[0].quantity
    error = f"test {quantity.error_name}{quantity.unit}"
    with rc_context(PRINT):
        figure = Figure(figsize=(6.4 + legend_width(curves), 2.9), layout="constrained")
        sorted_errors, price = figure.subplots(1, 2)
        for curve, style in zip(curves, styles_of(curves), strict=True):
            percentiles = quantity.scale * np.array([np.percentile(one, PERCENTILES) for one in curve.final_errors])
            draw_band(sorted_errors, PERCENTILES, percentiles, style | {"marker": ""}, curve.label)
            _draw_price(price, curve, style)
        sorted_errors.axvline(90, color=GREY, linewidth=0.8, zorder=0)
        sorted_errors.set(
            xlabel="percentile of the clients", ylabel=f"{error} of a client", xlim=(0, 100), ylim=(0, None)
        )
        reference = reference_of(curves)
        mean, p90 = (quantity.scale * over_rounds(reference, "test", name)[:, -1].mean() for name in ("mean", "p90"))
        price.axvline(mean, color=GREY, linewidth=0.8, zorder=0)
        price.axhline(p90, color=GREY, linewidth=0.8, zorder=0)
        price.set(xlabel=f"{error}, mean over clients", ylabel=f"{error}\n90th percentile of clients")
        legend(figure, sorted_errors)
    return figure


def error_rounds_figure(curves: Sequence[Curve]) -> Figure:
    """Mean and 90th percentile of the clients' test errors, and training losses, against the cost of communication.

    Args:
        curves: Curves on the same data.

    Returns:
        The horizontal axis counts the weighted sums that the server asks for, each of which is a secure aggregation
        (Delta-FL, Figures 6 to 11), or rounds if no run counts sums. Training losses are weighted by samples. Lines
        are means over the seeds, bands one sample standard deviation; they may begin above the panel.
    """
    quantity = curves[0].quantity
    splits = {"test": (f"test {quantity.error_name}{quantity.unit}", quantity.scale)}
    if evaluate_training(curves):
        splits["train"] = ("training loss, weighted by samples", 1)
    with rc_context(PRINT):
        figure = Figure(figsize=(6 + legend_width(curves), 0.4 + 2.2 * len(splits)), layout="constrained")
        panels = figure.subplots(len(splits), 2, sharex=True, sharey="row", squeeze=False)
        for row, (split, (label, scale)) in zip(panels, splits.items(), strict=True):
            for curve, style in zip(curves, styles_of(curves), strict=True):
                for axes, name in zip(row, ("mean", "p90"), strict=True):
                    values = scale * over_rounds(curve, split, name)
                    draw_band(axes, curve.calls.mean(0), values, style, curve.label)
            row[0].set_ylabel(label)
            _zoom(row)
        for top, bottom, title in zip(
            panels[0], panels[-1], ("mean over clients", "90th percentile of clients"), strict=True
        ):
            top.set_title(title)
            bottom.set_xlabel("sums at the server" if count_sums(curves) else "communication rounds")
        legend(figure, panels[0, 0])
    return figure


def choice_figure(choice: Choice) -> Figure:
    """What the clients' own choice is worth, and which curve serves whom.

    Args:
        choice: What clients pick.

    Returns:
        Left, mean and 90th percentile of the test errors (or losses) under each curve, under the clients' own choice
        and in hindsight; bars are one sample standard deviation over the seeds. Right, the share of the clients that
        pick each curve, by the percentile of their error under the reference; means over the seeds.
    """
    quantity = choice.curves[0].quantity
    with rc_context(PRINT):
        figure = Figure(figsize=(8.5, 1.2 + 0.35 * len(choice.outcomes)), layout="constrained")
        worth, served = figure.subplots(1, 2)
        colors = [style["color"] for style in styles_of(choice.curves)]
        for place, (errors, color) in enumerate(zip(choice.outcomes.values(), [*colors, "black", GREY], strict=True)):
            _draw_outcome(worth, place, quantity.scale * errors, color)
        worth.set_yticks(range(len(choice.outcomes)), [label.replace(" (", "\n(") for label in choice.outcomes])
        worth.set_ylim(len(choice.outcomes) - 0.5, -0.5)
        worth.set(
            xlabel=f"test {quantity.error_name}{quantity.unit} of the clients",
            title="mean (filled), 90th percentile (open)",
        )
        _draw_shares(served, choice, colors)
        reference = reference_of(choice.curves).label
        served.set(xlabel=f"percentile of the {quantity.error_name}\nunder {reference}", ylabel="clients (%)")
        served.set(title="who picks which model", ylim=(0, 100))
    return figure


def _zoom(row: Sequence[Axes]) -> None:
    """Fit the shared vertical axis to the lines without their first quarter, which would hide the differences."""
    lines = [np.asarray(line.get_xydata()) for axes in row for line in axes.lines]
    later = np.concatenate([line[line[:, 0] >= line[-1, 0] / 4, 1] for line in lines])
    row[0].set_ylim(0.9 * later.min(), 1.1 * later.max() or 1)


def _draw_price(axes: Axes, curve: Curve, style: dict[str, Any]) -> None:
    """Mean and 90th percentile of the final errors as a point with bars over the seeds."""
    mean, p90 = (curve.quantity.scale * over_rounds(curve, "test", name)[:, -1] for name in ("mean", "p90"))
    several = len(mean) > 1
    axes.errorbar(
        mean.mean(),
        p90.mean(),
        xerr=mean.std(ddof=1) if several else None,
        yerr=p90.std(ddof=1) if several else None,
        color=style["color"],
        marker=style["marker"],
        markerfacecolor=style["markerfacecolor"],
        markersize=5,
        capsize=2,
    )


def _draw_outcome(axes: Axes, place: int, errors: Floats, color: str) -> None:
    """A filled point for the mean, an open one for the 90th percentile; errors ``[seeds, clients]``."""
    for name, face in (("mean", color), ("p90", "white")):
        values = np.array(list(map(TEST[name], errors)))
        spread = values.std(ddof=1) if len(values) > 1 else None
        axes.errorbar(values.mean(), place, xerr=spread, color=color, marker="o", markersize=5, markerfacecolor=face)


def _draw_shares(axes: Axes, choice: Choice, colors: Sequence[str]) -> None:
    """A bar for each group, parted by what its clients pick."""
    shares = 100 * np.stack([choice.shares(group).mean(1) for group in choice.groups.values()], axis=1)
    bottoms = np.cumsum(shares, axis=0) - shares
    for share, bottom, color in zip(shares, bottoms, colors, strict=True):
        axes.bar(range(len(choice.groups)), share, bottom=bottom, color=color, width=0.75)
    axes.set_xticks(range(len(choice.groups)), list(choice.groups))
    axes.grid(visible=False, axis="x")
