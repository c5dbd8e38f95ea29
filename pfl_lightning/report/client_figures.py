"""Figures of the clients' results: histograms, numbers of samples, the tail, and what clients choose."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from pfl_lightning.report.choice import Choice
from pfl_lightning.report.compare_curves import Curves
from pfl_lightning.report.drawing import CARD, CARD_SIZE, COLORS, Style, curves_figure, draw_curves, grid, styles_of
from pfl_lightning.report.measures import TEST, evaluate_training, reference_of
from pfl_lightning.report.run_files import Floats, Ints
from pfl_lightning.score_kind import ScoreKind

BINS = 20  # of a histogram
CROWD = 300  # clients; of more, the points are smaller and paler


def scatter_figure(samples: Ints, scores: Floats, score_kind: ScoreKind, split: str) -> Figure:
    """The errors, or losses, of the clients of a run against their numbers of samples.

    Args:
        samples: Number of samples of each client, ``[clients]``.
        scores: Score of each client, ``[clients]``.
        score_kind: What clients are evaluated by.
        split: Name of the split, such as ``test``.
    """
    with grid(*CARD_SIZE, 1, 1, style=CARD) as (figure, ((axes,),)):
        scatter_axes(axes, samples, score_kind.scale * score_kind.errors(scores))
        axes.set(xlabel=f"{split} samples of a client", ylabel=f"{split} {score_kind.error_label}")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, borderaxespad=0, columnspacing=1)
    return figure


def scatter_axes(axes: Axes, samples: Ints, values: Floats, color: str = COLORS[0]) -> None:
    """Draw a point for each client, as in Delta-FL (arXiv:2002.11223, Figure 5), and ``draw_mean_and_p90``.

    Args:
        axes: Where to draw; the horizontal axis becomes logarithmic.
        samples: Number of samples of each client, ``[clients]``.
        values: Error or loss of each client, in the unit of the axis, ``[clients]``.
        color: Colour of the points.
    """
    size, alpha = (14, 0.6) if len(values) <= CROWD else (6, 0.4)
    axes.scatter(samples, values, s=size, color=color, alpha=alpha, linewidths=0, clip_on=False)
    draw_mean_and_p90(axes.axhline, values)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if samples.max() > 200 * samples.min() else (1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=0)


def draw_mean_and_p90(line: Callable[..., Any], values: Floats) -> None:
    """Draw lines at the mean (dashed) and the 90th percentile (dotted) of the clients.

    Args:
        line: Draws a line across the axes, such as ``Axes.axhline``.
        values: Error or loss of each client, in the unit of the axis, ``[clients]``.
    """
    for name, linestyle in (("mean", "--"), ("p90", ":")):
        value = TEST[name](values)
        line(value, color="black", linestyle=linestyle, linewidth=1, label=f"{name} {value:.3g}")


def clients_figure(curves: Curves) -> Figure:
    """Histograms of the clients' final test errors, or losses, and training losses, one row for each curve.

    Args:
        curves: Curves on the same data.

    Returns:
        Each client's error is its mean over the seeds (Delta-FL, Figures 4, 12 and 13).
    """
    splits = _final_values(curves)
    size = (4.5 * len(splits), 0.5 + 1.1 * len(curves))
    with grid(*size, len(curves), len(splits), sharex="col", sharey="col") as (figure, panels):
        for column, (label, values) in zip(panels.T, splits.values(), strict=True):
            bins = np.linspace(0, _largest(values) or 1, BINS + 1)
            for axes, curve, errors, style in zip(column, curves, values, styles_of(curves), strict=True):
                axes.hist(errors, bins, color=style["color"], alpha=0.5)
                draw_mean_and_p90(axes.axvline, errors)
                mean, p90 = (line.get_label() for line in axes.lines)
                name = f"{curve.label}: " if axes in panels[:, 0] else ""
                axes.set_title(f"{name}{mean} (dashed), {p90} (dotted)", loc="left")
            column[-1].set_xlabel(f"final {label} of a client")
        figure.supylabel("clients", fontsize="medium")
    return figure


def samples_figure(curves: Curves) -> Figure:
    """The clients' final test errors, or losses, and training losses, against their numbers of samples.

    Args:
        curves: Curves on the same data.

    Returns:
        A column for each curve; each client's error is its mean over the seeds (Delta-FL, Figures 5, 14 and 15).
    """
    splits = _final_values(curves)
    size = (0.6 + 2.2 * len(curves), 0.3 + 2.1 * len(splits))
    with grid(*size, len(splits), len(curves), sharex="row", sharey="row") as (figure, panels):
        for row, (split, (label, values)) in zip(panels, splits.items(), strict=True):
            for axes, curve, errors, style in zip(row, curves, values, styles_of(curves), strict=True):
                scatter_axes(axes, curve.final("samples", split)[0], errors, style["color"])
                axes.set_xlabel(f"{label.partition(' ')[0]} samples of a client")
                axes.legend(loc="upper right", ncols=2, fontsize="small", columnspacing=1, handlelength=1.5)
            row[0].set(ylabel=label, ylim=(0, 1.2 * _largest(values) or 1))  # with room for the legends
        for axes, curve in zip(panels[0], curves, strict=True):
            axes.set_title(curve.label)
    return figure


def _final_values(curves: Curves) -> dict[str, tuple[str, list[Floats]]]:
    """By split, what clients are evaluated by and each curve's clients, as means over the seeds, ``[clients]``."""
    score_kind = curves[0].score_kind
    columns = {"test": ("error", f"test {score_kind.error_label}", score_kind.scale)}
    if evaluate_training(curves):
        columns["train"] = ("loss", "training loss", 1)
    return {
        split: (label, [scale * _finite_means(curve.final(column, split)) for curve in curves])
        for split, (column, label, scale) in columns.items()
    }


def _finite_means(seeds: list[Floats]) -> Floats:
    """The means over the seeds, nan where they are not finite, as nan is not drawn."""
    means = np.mean(seeds, axis=0)
    return np.where(np.isfinite(means), means, np.nan)


def _largest(values: list[Floats]) -> float:
    return float(np.nanmax([0, *np.concatenate(values)]))


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
    ascending = [
        score_kind.scale * np.array([np.percentile(errors, PERCENTILES) for errors in curve.final("error")])
        for curve in curves
    ]
    with curves_figure(curves, (6.4, 2.9), 1, 2) as (figure, ((sorted_errors, mean_and_tail),)):
        draw_curves(sorted_errors, curves, [PERCENTILES[None]] * len(curves), ascending)
        label = f"{error} of a client"
        sorted_errors.set(xlabel="percentile of the clients", ylabel=label, xlim=(0, 100), ylim=(0, None))
        for curve, style in zip(curves, styles_of(curves), strict=True):
            mean, p90 = _mean_and_p90(score_kind, curve.final("error"))
            _draw_point(mean_and_tail, mean, p90, style, capsize=2)
        label = f"{error}\n90th percentile of clients"
        mean_and_tail.set(xlabel=f"{error}, mean over clients", ylabel=label)
    sorted_errors.axvline(90, **THIN)
    mean, p90 = _mean_and_p90(score_kind, reference_of(curves).final("error"))
    mean_and_tail.axvline(mean.mean(), **THIN)
    mean_and_tail.axhline(p90.mean(), **THIN)
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
    colors = [*(style["color"] for style in styles_of(choice.curves)), "black", GREY]
    outcomes = list(choice.outcomes)
    with grid(8.5, 1.2 + 0.35 * len(outcomes), 1, 2) as (figure, ((worth, served),)):
        for place, (label, color) in enumerate(zip(outcomes, colors, strict=True)):
            for values, face in zip(_mean_and_p90(score_kind, choice.errors(label)), (color, "white"), strict=True):
                look = {"color": color, "marker": "o", "markerfacecolor": face}
                _draw_point(worth, values, np.full(1, place), look)
        worth.set_yticks(range(len(outcomes)), [label.replace(" (", "\n(") for label in outcomes])
        worth.invert_yaxis()
        title = "mean (filled), 90th percentile (open)"
        worth.set(xlabel=f"test {score_kind.error_label} of the clients", title=title)
        bottoms = np.zeros(len(choice.groups))
        for curve, color in zip(choice.curves, colors, strict=False):
            heights = np.array([100 * shares.mean() for shares in choice.shares(curve.label).values()])
            served.bar(choice.groups, heights, bottom=bottoms, color=color, width=0.75)
            bottoms += heights
        served.grid(visible=False, axis="x")
        percentile = f"percentile of the {score_kind.error_name}\nunder {reference_of(choice.curves).label}"
        served.set(xlabel=percentile, ylabel="clients (%)", title="who picks which model", ylim=(0, 100))
    return figure


def _mean_and_p90(score_kind: ScoreKind, errors: list[Floats] | Floats) -> list[Floats]:
    """Mean and 90th percentile of the clients of each seed, in the unit of the axis, ``[seeds]`` each."""
    return [score_kind.scale * np.array([TEST[name](seed) for seed in errors]) for name in ("mean", "p90")]


def _draw_point(axes: Axes, x: Floats, y: Floats, style: Style, **options: Any) -> None:
    """A point at the means, with bars of one sample standard deviation where there are several values."""
    xerr, yerr = (values.std(ddof=1) if len(values) > 1 else None for values in (x, y))
    axes.errorbar(x.mean(), y.mean(), xerr=xerr, yerr=yerr, markersize=5, **style | {"linestyle": ""}, **options)
