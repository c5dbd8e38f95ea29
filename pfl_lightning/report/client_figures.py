"""Figures of the clients' final results: histograms, numbers of samples, the tail, and what clients choose."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lightning.report.choice import Choice
from pfl_lightning.report.compare_curves import Curve, Curves
from pfl_lightning.report.drawing import Panel, Style, curves_figure, draw_band, grid, styles_of
from pfl_lightning.report.figures.scatter import scatter_axes
from pfl_lightning.report.run_files import Floats, Ints
from pfl_lightning.report.tails import TEST, evaluate_training, reference_of

BINS = 20  # of a histogram


Values = list[tuple[Ints, Floats, str]]
"""Of each curve, the clients' numbers of samples of a split, their errors in the unit of the axis, and its colour."""


def clients_figure(curves: Curves) -> Figure:
    """Histograms of the clients' final test errors, or losses, and training losses, one row for each curve.

    Args:
        curves: Curves on the same data.

    Returns:
        Each client's error is its mean over the seeds (Delta-FL, Figures 4, 12 and 13).
    """
    splits = _splits(curves)
    size = (4.5 * len(splits), 0.5 + 1.1 * len(curves))
    with grid(*size, len(curves), len(splits), sharex="col", sharey="col") as (figure, panels):
        for column, (name, evaluated) in zip(panels.T, splits.items(), strict=True):
            bins = np.linspace(0, _largest(evaluated) or 1, BINS + 1).tolist()
            for axes, (_, values, color) in zip(column, evaluated, strict=True):
                _draw_histogram(axes, values, bins, color)
            column[-1].set_xlabel(f"final {name} of a client")
        for axes, curve in zip(panels[:, 0], curves, strict=True):
            axes.set_title(f"{curve.label}: {axes.get_title(loc='left')}", loc="left")
        figure.supylabel("clients", fontsize="medium")
    return figure


def samples_figure(curves: Curves) -> Figure:
    """The clients' final test errors, or losses, and training losses, against their numbers of samples.

    Args:
        curves: Curves on the same data.

    Returns:
        A column for each curve; each client's error is its mean over the seeds (Delta-FL, Figures 5, 14 and 15).
    """
    splits = _splits(curves)
    size = (0.6 + 2.2 * len(curves), 0.3 + 2.1 * len(splits))
    with grid(*size, len(splits), len(curves), sharex="row", sharey="row") as (figure, panels):
        for row, (name, evaluated) in zip(panels, splits.items(), strict=True):
            for axes, (samples, values, color) in zip(row, evaluated, strict=True):
                scatter_axes(axes, samples, values, color)
                axes.set_xlabel(f"{name.partition(' ')[0]} samples of a client")
                axes.legend(loc="upper right", ncols=2, fontsize="small", columnspacing=1, handlelength=1.5)
            row[0].set(ylabel=name, ylim=(0, 1.2 * _largest(evaluated) or 1))  # with room for the legends
        for axes, curve in zip(panels[0], curves, strict=True):
            axes.set_title(curve.label)
    return figure


def _splits(curves: Curves) -> dict[str, Values]:
    """What clients have on the test samples and, if evaluated, the training ones, as means over the seeds, by label."""
    score_kind = curves[0].score_kind
    errors = [score_kind.scale * np.mean(curve.final_errors, axis=0) for curve in curves]
    splits = {f"test {score_kind.error_label}": _values(curves, "test", errors)}
    if evaluate_training(curves):
        losses = [np.mean([clients.loss for clients in curve.final("train")], axis=0) for curve in curves]
        splits["training loss"] = _values(curves, "train", losses)
    return splits


def _values(curves: Curves, split: str, errors: Sequence[Floats]) -> Values:
    samples = [curve.final(split)[0].samples for curve in curves]
    finite = [np.where(np.isfinite(values), values, np.nan) for values in errors]  # nan is not drawn
    colors = [style["color"] for style in styles_of(curves)]
    return list(zip(samples, finite, colors, strict=True))


def _largest(evaluated: Values) -> float:
    return max(float(values.max(where=np.isfinite(values), initial=0)) for _, values, _ in evaluated)


def _draw_histogram(axes: Axes, values: Floats, bins: list[float], color: str) -> None:
    axes.hist(values, bins, color=color, alpha=0.5)
    mean = values.mean()
    p90 = np.percentile(values, 90)
    axes.axvline(mean, color="black", linestyle="--", linewidth=1)
    axes.axvline(p90, color="black", linestyle=":", linewidth=1)
    axes.set_title(f"mean {mean:.3g} (dashed), p90 {p90:.3g} (dotted)", loc="left")


PERCENTILES = np.linspace(0, 100, 101)
GREY = "#999999"
THIN: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "zorder": 0}


def tail_figure(curves: Curves) -> Figure:
    """Which clients do worst, and the trade-off between mean error and 90th percentile.

    Args:
        curves: Curves on the same data.

    Returns:
        Left, the final test errors (or losses) of the clients from the smallest to the largest. Right, their mean
        against their 90th percentile; the grey lines go through the reference. Bands and bars are one sample standard
        deviation over the seeds.
    """
    score_kind = curves[0].score_kind
    error = f"test {score_kind.error_label}"
    texts = {
        "xlabel": "percentile of the clients",
        "ylabel": f"{error} of a client",
        "xlim": (0, 100),
        "ylim": (0, None),
    }
    price = {"xlabel": f"{error}, mean over clients", "ylabel": f"{error}\n90th percentile of clients"}
    figure = curves_figure(curves, [[Panel(_draw_sorted, texts), Panel(_draw_price, price)]], (6.4, 2.9))
    sorted_errors, mean_and_tail = figure.axes
    sorted_errors.axvline(90, **THIN)
    reference = reference_of(curves)
    mean_and_tail.axvline(_over_clients(reference, "mean").mean(), **THIN)
    mean_and_tail.axhline(_over_clients(reference, "p90").mean(), **THIN)
    return figure


def choice_figure(choice: Choice) -> Figure:
    """The errors under the clients' own choice, and which clients pick which curve.

    Args:
        choice: What clients pick.

    Returns:
        Left, mean and 90th percentile of the test errors (or losses) under each curve, under the clients' own choice
        and in hindsight; bars are one sample standard deviation over the seeds. Right, the share of the clients that
        pick each curve, by the percentile of their error under the reference; means over the seeds.
    """
    score_kind = choice.curves[0].score_kind
    reference = reference_of(choice.curves).label
    colors = [style["color"] for style in styles_of(choice.curves)]
    with grid(8.5, 1.2 + 0.35 * len(choice.outcomes), 1, 2) as (figure, ((worth, served),)):
        for place, (errors, color) in enumerate(zip(choice.outcomes.values(), [*colors, "black", GREY], strict=True)):
            for name, face in (("mean", color), ("p90", "white")):
                values = score_kind.scale * np.array(list(map(TEST[name], errors)))
                _draw_point(worth, values, np.full(1, place), {"color": color, "marker": "o", "markerfacecolor": face})
        worth.set_yticks(range(len(choice.outcomes)), [label.replace(" (", "\n(") for label in choice.outcomes])
        worth.set_ylim(len(choice.outcomes) - 0.5, -0.5)
        worth.set(
            xlabel=f"test {score_kind.error_label} of the clients",
            title="mean (filled), 90th percentile (open)",
        )
        _draw_shares(served, choice, colors)
        served.set(xlabel=f"percentile of the {score_kind.error_name}\nunder {reference}", ylabel="clients (%)")
        served.set(title="who picks which model", ylim=(0, 100))
    return figure


def _draw_sorted(axes: Axes, curve: Curve, style: Style) -> None:
    """The final errors from the smallest to the largest."""
    errors = curve.score_kind.scale * np.array([np.percentile(errors, PERCENTILES) for errors in curve.final_errors])
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
