"""Tables of measured values, as Markdown, and as CSV with a row for each seed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pfl_lightning.report.measures import half_width
from pfl_lightning.report.tables import markdown
from reproduction.claims import Floats, spread
from reproduction.items import Variables, bind, construct, fill, listed, repeats
from reproduction.results import Results

EARLY = "ended early"


@dataclass(kw_only=True)
class Table:
    """A table.

    Attributes:
        name: Name of its file, which it shares with tables of the same name.
        title: What stands above it.
        rows: Rules for the variables of its rows.
        columns: By their heads: texts, or settings of a ``Column``.
        measure: Of columns that have none of their own.
        style: The same.
        digits: The same.
        nan: What stands for values that there are not.
        whole: Whether a mean is shown only if all runs have done their rounds.
        printed: The format of the paper's numbers, if they stand in brackets.
        csv: File for the values of each seed.
    """

    name: str
    title: str
    rows: Any
    columns: Mapping[str, Any]
    measure: Any = None
    style: str = "spread"
    digits: int = 2
    nan: str = "never"
    whole: bool = False
    printed: str | None = None
    csv: str | None = None

    def __post_init__(self) -> None:
        for column in self.columns.values():
            if isinstance(column, dict):
                bind(Column, column, "columns")


@dataclass(kw_only=True)
class Column:
    """What a column shows of runs.

    Attributes:
        of: Name of the runs.
        minus: Name of those whose values are subtracted, or a series with a measure of its own.
        measure: What is measured.
        style: ``spread`` has the standard deviation, ``mean`` has not, ``interval`` has half of the interval, ``least``
            is the least value, ``printed`` the paper's number.
        digits: Digits after the point.
        printed: Name of the paper's number, if it is not the runs'.
        csv: Name of the column in the file.
        choice: Settings by the name of their runs, of which the largest is shown that is about as good as the best.
        within: How much worse it may be.
    """

    of: str = ""
    minus: Any = None
    measure: Any = None
    style: str = "spread"
    digits: int = 2
    printed: str | None = None
    csv: str = ""
    choice: Mapping[str, float] | None = None
    within: float = 0


def rows_of(block: Table, results: Results, variables: Variables) -> Iterator[list[str | Column]]:
    """The columns of each row."""
    usual = {"measure": block.measure, "style": block.style, "digits": block.digits}
    columns = [{**usual, **column} if isinstance(column, dict) else column for column in block.columns.values()]
    for rows in listed(block.rows):
        for row in repeats(rows, {**variables, "runs": named_runs(results)}):
            filled = fill(columns, row)
            yield [
                construct(Column, column, "columns") if isinstance(column, dict) else str(column) for column in filled
            ]


def named_runs(results: Results) -> list[dict[str, str]]:
    """All runs, as a row can name them: with or without their folder, the method alone, and its settings."""
    rows = []
    for run in results.runs:
        name = run.rpartition("/")[2]
        method, *settings = name.split(",")
        rows.append({"run": run, "name": name, "method": method, "settings": ", ".join(settings)})
    return rows


def table(block: Table, results: Results, variables: Variables) -> str:
    """A table as Markdown."""
    cells = [[cell(column, block, results) for column in row] for row in rows_of(block, results, variables)]
    heads = [fill(head, variables) for head in block.columns]
    return markdown(fill(block.title, variables), heads, cells)


def cell(column: str | Column, block: Table, results: Results) -> str:
    """A cell: a text, or a mean over the seeds in the style of the column."""
    if isinstance(column, str):
        return column
    if column.choice:
        return choice(column.choice, column, results)
    if column.style == "printed":
        return str(results.printed.get(column.of, "-"))
    if column.of.endswith(" none"):  # a method without such a model
        return "-"
    values = results.values({"of": column.of, "minus": column.minus}, column.measure)
    if column.style == "interval":
        return interval(values)
    if column.style == "least":
        return f"{values.min():g}" if values.min() < inf else "-"
    if block.whole and np.isnan(values).any():  # only runs that have done their rounds are told
        return "-"
    text = f"{values.mean():.{column.digits}f}" if column.style == "mean" else spread(values, column.digits, block.nan)
    printed = results.printed.get(column.printed or column.of) if block.printed else None
    return text if printed is None else f"{text} ({printed:{block.printed}})"


def interval(points: Floats) -> str:
    """The mean of paired differences ``[seeds]`` with half of its interval, of the seeds that have one."""
    known = points[~np.isnan(points)]
    if len(known) < 2:
        return spread(points, nan=EARLY)
    seeds = "" if len(known) == len(points) else f" ({len(known)} of {len(points)} seeds)"
    return f"{known.mean():.2f} ± {half_width(known):.2f}{seeds}"


def choice(settings: Mapping[str, float], column: Column, results: Results) -> str:
    """The largest setting whose mean is not much below the best, and whose runs did not stop; or a dash."""
    means = {value: results.values(name, column.measure).mean() for name, value in settings.items()}
    known = [mean for mean in means.values() if not np.isnan(mean)]
    best = max(known, default=inf)
    return f"{max(value for value in means if means[value] >= best - column.within):g}" if known else "-"


def write_csv(block: Table, results: Results, path: Path) -> None:
    """Write the values of each seed in the columns that have a name in the file."""
    frames = []
    for row in rows_of(block, results, results.part.variables):
        columns = [column for column in row if isinstance(column, Column) and column.csv]
        series = {column.csv: results.values(column.of, column.measure) for column in columns}
        frames.append(pd.DataFrame(series).assign(method=row[0], seed=results.part.place.seeds))
    pd.concat(frames).set_index(["method", "seed"]).to_csv(path, float_format="%.4f")
