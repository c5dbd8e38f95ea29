"""Pictures of a table or figure that ``pfl compare`` does not draw."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from pfl_lightning.report import cosine_figure, partition_figure, partition_table, save_figure, time_figure
from pfl_lightning.report.drawing import COLORS, draw_band, grid, looks_of
from reproduction.claims import deviation
from reproduction.curves import keep
from reproduction.items import fill
from reproduction.measures import class_counts, cosines_of, logged
from reproduction.results import Results

COMMUNICATION_TIMES = (0.0, 10.0, 100.0)


Figures = Mapping[str, Figure]  # by the names of their files


def over_time(results: Results) -> Figures:
    """Accuracies over simulated time, a panel for each communication time; it and its curves are beside the folder."""
    curves = list(results.labelled.values())
    folder = results.part.place.folder
    save_figure(time_figure(curves, COMMUNICATION_TIMES), folder.with_suffix(".png"), dpi=120)
    keep(curves, folder.with_suffix(".csv"))
    return {}


def over_values(
    results: Results,
    name: str,
    values: Any,
    lines: Mapping[str, str],
    panels: Sequence[Mapping[str, Any]],
    size: tuple[float, float],
    xlabel: str,
    ylabel: str,
    speedup: bool = False,
) -> Figures:
    """Means with one standard deviation over the seeds, or speed-ups over the first value.

    Args:
        results: The runs.
        name: Name of the file.
        values: Values of a setting.
        lines: Name of the runs of a ``{value}``, by label.
        panels: Settings of the series, and a ``title``.
        size: Inches.
        xlabel: Name of the setting.
        ylabel: What is measured.
        speedup: Whether speed-ups are shown, beside ideal ones.
    """
    variables = results.part.variables
    values = fill(values, variables)
    with grid(*size, 1, len(panels), sharey=True) as (figure, (row,)):
        for axes, panel in zip(row, panels, strict=True):
            series = {key: setting for key, setting in panel.items() if key != "title"}
            for (label, runs), look in zip(lines.items(), looks_of(list(lines)), strict=True):
                filled = [fill({"of": runs, **series}, {**variables, "value": value}) for value in values]
                measured = [results.values(each) for each in filled]
                means = np.array([seeds.mean() for seeds in measured])
                if speedup:
                    axes.plot(values, means[0] / means, label=label, **look)
                else:
                    axes.errorbar(values, means, [*map(deviation, measured)], capsize=2, label=label, **look)
            if speedup:
                axes.plot(values, [value / values[0] for value in values], "--", color="grey", label="ideal")
            axes.set(title=panel.get("title", ""), xlabel=xlabel, xticks=values)
        row[0].set_ylabel(ylabel)
        figure.legend(*row[0].get_legend_handles_labels(), loc="outside right center")
    return {name: figure}


def over_rounds(
    results: Results,
    name: str,
    panels: Any,
    title: str,
    lines: Any,
    of: str,
    tags: Mapping[str, str],
    ylabel: str,
    start: float | None = None,
) -> Figures:
    """What runs log in each round; bands are one standard deviation.

    Args:
        results: The runs.
        name: Name of the file.
        panels: Values that a ``{panel}`` stands for.
        title: Title of a ``{panel}``.
        lines: Values that a ``{line}`` stands for, each with a colour.
        of: Name of the runs of a ``{panel}`` and a ``{line}``.
        tags: Labels of a ``{line}``, by what is logged: the first is solid, the second dashed.
        ylabel: What is logged.
        start: What it is before the first round, if that is known.
    """
    panels, lines = fill([panels, lines], results.part.variables)
    with grid(8.5, 2.6, 1, len(panels), sharey=True) as (figure, (row,)):
        for axes, panel in zip(row, panels, strict=True):
            for line, color in zip(lines, COLORS, strict=False):
                filled = {"panel": panel, "line": line}
                runs, _ = results.runs_of(fill(of, filled))
                for (tag, label), style in zip(tags.items(), ("-", "--"), strict=False):
                    look = {"color": color, "linestyle": style}
                    draw_band(axes, *logged(runs, tag, start), look, fill(label, filled))
            axes.set(title=fill(title, {"panel": panel}), xlabel="communication rounds")
        row[0].set_ylim(bottom=0)  # of all panels
        row[0].set_ylabel(ylabel)
        figure.legend(*row[0].get_legend_handles_labels(), loc="outside right center")
    return {name: figure}


def cosines(results: Results, name: str, panels: Any, of: str) -> Figures:
    """Cosines between the clients of the first seed; arguments as in ``over_rounds``, with a file for each panel."""
    figures = {}
    for panel in fill(panels, results.part.variables):
        runs, _ = results.runs_of(fill(of, {"panel": panel}))
        folder = next(run.folder for run in runs if run)
        maps = {part: entries.numpy() for part, entries in cosines_of(folder).items()}
        figures[fill(name, {"panel": panel})] = cosine_figure(maps, class_counts(folder))
    return figures


def split(results: Results, name: str = "", title: str = "") -> Figures:
    """Which classes the clients hold, as a picture, or as a printed table if it has no name."""
    counts = results.data.class_counts()
    if name:
        return {name: partition_figure(counts, title)}
    Console().print(partition_table(counts))
    return {}


PICTURES: Mapping[str, Callable[..., Figures]] = {
    picture.__name__: picture for picture in (over_time, over_values, over_rounds, cosines, split)
}
