"""Figures with every client in them: histograms, and scores against numbers of samples."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.drawing import grid, styles_of
from pfl_lightning.report.figures.scatter import scatter_axes
from pfl_lightning.report.run_files import Floats, Ints
from pfl_lightning.report.tails import evaluate_training

BINS = 20  # of a histogram


Values = list[tuple[Ints, Floats]]
"""Of each curve, the clients' numbers of samples of a split, and their errors in the unit of the axis."""


def clients_figure(curves: Sequence[Curve]) -> Figure:
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
            highest = max(values.max(where=np.isfinite(values), initial=0) for _, values in evaluated)
            bins = np.linspace(0, highest or 1, BINS + 1).tolist()
            for axes, (_, values), style in zip(column, evaluated, styles_of(curves), strict=True):
                _draw_histogram(axes, values, bins, style["color"])
            column[-1].set_xlabel(f"final {name} of a client")
        for axes, curve in zip(panels[:, 0], curves, strict=True):
            axes.set_title(f"{curve.label}: {axes.get_title(loc='left')}", loc="left")
        figure.supylabel("clients", fontsize="medium")
    return figure


def samples_figure(curves: Sequence[Curve]) -> Figure:
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
            for axes, (samples, values), style in zip(row, evaluated, styles_of(curves), strict=True):
                scatter_axes(axes, samples, values, style["color"])
                axes.set_xlabel(f"{name.partition(' ')[0]} samples of a client")
                axes.legend(loc="upper right", ncols=2, fontsize="small", columnspacing=1, handlelength=1.5)
            highest = max(values.max(where=np.isfinite(values), initial=0) for _, values in evaluated)
            row[0].set(ylabel=name, ylim=(0, 1.2 * highest or 1))  # with room for the legends
        for axes, curve in zip(panels[0], curves, strict=True):
            axes.set_title(curve.label)
    return figure


def _splits(curves: Sequence[Curve]) -> dict[str, Values]:
    """What clients have on the test samples and, if evaluated, the training ones, as means over the seeds, by label."""
    score_kind = curves[0].score_kind
    errors = [score_kind.scale * np.mean(curve.final_errors, axis=0) for curve in curves]
    splits = {f"test {score_kind.error_name}{score_kind.unit}": _with_samples(curves, "test", errors)}
    if evaluate_training(curves):
        losses = [np.mean([one.loss for one in curve.final("train")], axis=0) for curve in curves]
        splits["training loss"] = _with_samples(curves, "train", losses)
    return splits


def _with_samples(curves: Sequence[Curve], split: str, values: Sequence[Floats]) -> Values:
    finite = [np.where(np.isfinite(each), each, np.nan) for each in values]  # nan is not drawn
    return [(curve.final(split)[0].samples, each) for curve, each in zip(curves, finite, strict=True)]


def _draw_histogram(axes: Axes, values: Floats, bins: list[float], color: str) -> None:
    axes.hist(values, bins, color=color, alpha=0.5)
    mean, p90 = values.mean(), np.percentile(values, 90)
    axes.axvline(mean, color="black", linestyle="--", linewidth=1)
    axes.axvline(p90, color="black", linestyle=":", linewidth=1)
    axes.set_title(f"mean {mean:.3g} (dashed), p90 {p90:.3g} (dotted)", loc="left")
