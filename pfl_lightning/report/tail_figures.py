"""Figures of the tail: who is served badly, what it costs to serve them, and what clients choose."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lightning.report.choice import Choice
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.drawing import Panel, Style, curves_figure, draw_band, grid, styles_of
from pfl_lightning.report.run_files import Floats
from pfl_lightning.report.tails import TEST, reference_of

PERCENTILES = np.linspace(0, 100, 101)
GREY = "#999999"
THIN: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "zorder": 0}


def tail_figure(curves: Sequence[Curve]) -> Figure:
    """Who is served badly, and what it costs to serve them.

    Args:
        curves: Curves on the same data.

    Returns:
        Left, the final test errors (or losses) of the clients from the smallest to the largest. Right, their mean
        against their 90th percentile; the grey lines go through the reference. Bands and bars are one sample standard
        deviation over the seeds.
    """
    score_kind = curves[0].score_kind
    error = f"test {score_kind.error_name}{score_kind.unit}"
    texts = {
        "xlabel": "percentile of the clients",
        "ylabel": f"{error} of a client",
        "xlim": (0, 100),
        "ylim": (0, None),
    }
    price = {"xlabel": f"{error}, mean over clients", "ylabel": f"{error}\n90th percentile of clients"}
    figure = curves_figure(curves, [[Panel(_draw_sorted, texts), Panel(_draw_price, price)]], (6.4, 2.9))
    left, right = figure.axes
    left.axvline(90, **THIN)
    mean, p90 = (_over_clients(reference_of(curves), name).mean() for name in ("mean", "p90"))
    right.axvline(mean, **THIN)
    right.axhline(p90, **THIN)
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
    score_kind, reference = choice.curves[0].score_kind, reference_of(choice.curves).label
    colors = [style["color"] for style in styles_of(choice.curves)]
    with grid(8.5, 1.2 + 0.35 * len(choice.outcomes), 1, 2) as (figure, ((worth, served),)):
        for place, (errors, color) in enumerate(zip(choice.outcomes.values(), [*colors, "black", GREY], strict=True)):
            for name, face in (("mean", color), ("p90", "white")):
                values = score_kind.scale * np.array(list(map(TEST[name], errors)))
                _draw_point(worth, values, np.full(1, place), {"color": color, "marker": "o", "markerfacecolor": face})
        worth.set_yticks(range(len(choice.outcomes)), [label.replace(" (", "\n(") for label in choice.outcomes])
        worth.set_ylim(len(choice.outcomes) - 0.5, -0.5)
        worth.set(
            xlabel=f"test {score_kind.error_name}{score_kind.unit} of the clients",
            title="mean (filled), 90th percentile (open)",
        )
        _draw_shares(served, choice, colors)
        served.set(xlabel=f"percentile of the {score_kind.error_name}\nunder {reference}", ylabel="clients (%)")
        served.set(title="who picks which model", ylim=(0, 100))
    return figure


def _draw_sorted(axes: Axes, curve: Curve, style: Style) -> None:
    """The final errors from the smallest to the largest."""
    errors = curve.score_kind.scale * np.array([np.percentile(one, PERCENTILES) for one in curve.final_errors])
    draw_band(axes, PERCENTILES, errors, style | {"marker": ""}, curve.label)


def _draw_price(axes: Axes, curve: Curve, style: Style) -> None:
    """Mean and 90th percentile of the final errors as a point with bars over the seeds."""
    _draw_point(axes, _over_clients(curve, "mean"), _over_clients(curve, "p90"), style, capsize=2)


def _over_clients(curve: Curve, name: str) -> Floats:
    """A statistic of the final errors in the unit of the axis, ``[seeds]``."""
    return curve.score_kind.scale * np.array(list(map(TEST[name], curve.final_errors)))


def _draw_point(axes: Axes, x: Floats, y: Floats, style: Style, **options: Any) -> None:
    """A point at the means, with bars of one sample standard deviation where there are several values."""
    xerr, yerr = (values.std(ddof=1) if len(values) > 1 else None for values in (x, y))
    look = {name: style[name] for name in ("color", "marker", "markerfacecolor")}
    axes.errorbar(x.mean(), y.mean(), xerr=xerr, yerr=yerr, markersize=5, **look, **options)


def _draw_shares(axes: Axes, choice: Choice, colors: Sequence[str]) -> None:
    """A bar for each group, parted by what its clients pick."""
    shares = 100 * np.stack([choice.shares(group).mean(1) for group in choice.groups.values()], axis=1)
    bottoms = np.cumsum(shares, axis=0) - shares
    for share, bottom, color in zip(shares, bottoms, colors, strict=True):
        axes.bar(range(len(choice.groups)), share, bottom=bottom, color=color, width=0.75)
    axes.set_xticks(range(len(choice.groups)), list(choice.groups))
    axes.grid(visible=False, axis="x")
