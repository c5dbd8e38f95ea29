"""Pictures of a table or figure that ``pfl compare`` does not draw."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from pfl_lightning.report import partition_figure, partition_table, save_figure, time_figure
from pfl_lightning.report.drawing import COLORS, draw_band, grid, looks_of
from reproduction.claims import deviation
from reproduction.curves import keep
from reproduction.items import Spec, fill
from reproduction.kinds import logged
from reproduction.results import Results
from reproduction.runs import split_data

COMMUNICATION_TIMES = (0.0, 10.0, 100.0)


def over_time(block: Spec, results: Results) -> None:
    """Accuracies over simulated time, a panel for each communication time; their curves are kept beside them."""
    curves = list(results.labelled.values())
    folder = results.part.place.folder
    save_figure(time_figure(curves, COMMUNICATION_TIMES), folder.with_suffix(".png"), dpi=120)
    keep(curves, folder.with_suffix(".csv"))


def over_values(block: Spec, results: Results) -> None:
    """A line for each method against the values of a setting, a panel for each measure."""
    save_figure(values_figure(block, results), results.part.place.folder / f"{block['name']}.png")


def values_figure(block: Spec, results: Results) -> Figure:
    """The figure: means with one standard deviation over the seeds, or speed-ups over the first value.

    Args:
        block: ``values``, ``lines`` with the name of the runs of a ``{value}`` by label, and ``panels``.
        results: The runs.
    """
    variables, panels = results.part.variables, block["panels"]
    values = fill(block["values"], variables)
    width, height = block["size"]
    with grid(width, height, 1, len(panels), sharey=True) as (figure, (row,)):
        for axes, panel in zip(row, panels, strict=True):
            for (label, name), look in zip(block["lines"].items(), looks_of(list(block["lines"])), strict=True):
                series = [fill({"of": name, **panel}, {**variables, "value": value}) for value in values]
                measured = [results.values(each) for each in series]
                means = np.array([each.mean() for each in measured])
                if block.get("speedup"):
                    axes.plot(values, means[0] / means, label=label, **look)
                else:
                    axes.errorbar(values, means, [deviation(each) for each in measured], capsize=2, label=label, **look)
            if block.get("speedup"):
                axes.plot(values, [value / values[0] for value in values], "--", color="grey", label="ideal")
            axes.set(title=panel.get("title", ""), xlabel=block["xlabel"], xticks=values)
        row[0].set_ylabel(block["ylabel"])
        figure.legend(*row[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def consensus(block: Spec, results: Results) -> None:
    """Errors of consensus against rounds, a panel for each concentration."""
    save_figure(consensus_figure(block, results), results.part.place.folder / f"{block['name']}.png")


def consensus_figure(block: Spec, results: Results) -> Figure:
    """The figure: solid lines are errors after mixing, dashed ones those before; bands are one standard deviation.

    Args:
        block: ``panels`` and ``lines``, and the name of the runs ``of`` each.
        results: The runs.
    """
    panels, lines = fill([block["panels"], block["lines"]], results.part.variables)
    with grid(8.5, 2.6, 1, len(panels), sharey=True) as (figure, (row,)):
        for axes, panel in zip(row, panels, strict=True):
            for line, color in zip(lines, COLORS, strict=False):
                draw_errors(axes, results, fill(block["of"], {"panel": panel, "line": line}), line, color)
            axes.set(title=f"alpha = {panel}", xlabel="communication rounds", ylim=(0, None))
        row[0].set_ylabel("error of consensus")
        figure.legend(*row[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def draw_errors(axes: Axes, results: Results, name: str, label: str, color: str) -> None:
    """Both lines of some runs."""
    for when, line, text in (("before", "--", "before mixing"), ("after", "-", "after")):
        errors = logged(results, name, f"consensus/{when}")
        rounds = np.arange(1, errors.shape[1] + 1)
        draw_band(axes, rounds, errors, {"color": color, "linestyle": line}, f"{label}, {text}")


def split(block: Spec, results: Results) -> None:
    """Which classes the clients hold, as a picture, or as a printed table if it has no name."""
    counts = split_data(results.part.place.options).class_counts()
    if "name" in block:
        save_figure(partition_figure(counts, block["title"]), results.part.place.folder / f"{block['name']}.png")
    else:
        Console().print(partition_table(counts))


PICTURES: dict[str, Callable[[Spec, Any], None]] = {
    picture.__name__: picture for picture in (over_time, over_values, consensus, split)
}
