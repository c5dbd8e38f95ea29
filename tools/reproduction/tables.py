"""Tables of measured values, as Markdown, and as CSV with a row for each seed."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pfl_lightning.report.tables import markdown
from reproduction.claims import Floats, half_width, spread
from reproduction.items import Spec, Variables, fill, listed, repeats
from reproduction.results import Results

EARLY = "ended early"


def rows_of(block: Spec, results: Results, variables: Variables) -> Iterator[list[Any]]:
    """The columns of each row: texts, or series with a measure and the style of their cells, or those of the table."""
    usual = {name: block[name] for name in ("measure", "style", "digits") if name in block}
    columns = [{**usual, **column} if isinstance(column, dict) else column for column in block["columns"].values()]
    for rows in listed(block["rows"]):
        for row in repeats(rows, {**variables, "runs": named_runs(results)}):
            yield fill(columns, row)


def named_runs(results: Results) -> list[dict[str, str]]:
    """All runs, as a row can name them: with or without their folder, the method alone, and its settings."""
    rows = []
    for run in results.runs:
        name = run.rpartition("/")[2]
        method, *settings = name.split(",")
        rows.append({"run": run, "name": name, "method": method, "settings": ", ".join(settings)})
    return rows


def table(block: Spec, results: Results, variables: Variables) -> str:
    """A table as Markdown."""
    cells = [[cell(column, block, results) for column in row] for row in rows_of(block, results, variables)]
    heads = [fill(head, variables) for head in block["columns"]]
    return markdown(fill(block["title"], variables), heads, cells)


def cell(column: Any, block: Spec, results: Results) -> str:
    """A cell: a text, or a mean over the seeds in the style of the column or the table.

    ``spread`` has the standard deviation, ``mean`` has not, ``interval`` has half of the interval, ``least`` is the
    least value, and ``choice`` the largest of several settings that is about as good as the best.
    """
    if not isinstance(column, dict):
        return str(column)
    if "choice" in column:
        return choice(column, results)
    style, digits = column.get("style", "spread"), column.get("digits", 2)
    if style == "printed":
        return str(results.printed.get(column["of"], "-"))
    if column["of"].endswith(" none"):  # a method without such a model
        return "-"
    values = results.values(column)
    if style == "interval":
        return interval(values)
    if style == "least":
        return f"{values.min():g}" if values.min() < inf else "-"
    if block.get("whole") and np.isnan(values).any():  # only runs that have done their rounds are told
        return "-"
    text = f"{values.mean():.{digits}f}" if style == "mean" else spread(values, digits, block.get("nan", "never"))
    printed = (
        results.printed.get(column["printed"] if "printed" in column else column["of"]) if "printed" in block else None
    )
    return text if printed is None else f"{text} ({printed:{block['printed']}})"


def interval(points: Floats) -> str:
    """The mean of paired differences ``[seeds]`` with half of its interval, of the seeds that have one."""
    known = points[~np.isnan(points)]
    if len(known) < 2:
        return spread(points, nan=EARLY)
    seeds = "" if len(known) == len(points) else f" ({len(known)} of {len(points)} seeds)"
    return f"{known.mean():.2f} ± {half_width(known, len(known)):.2f}{seeds}"


def choice(column: Spec, results: Results) -> str:
    """The largest setting whose mean is at most a margin below the best, and whose runs did not stop; or a dash.

    Args:
        column: The settings under ``choice``, by the name of their runs, with ``measure`` and ``within``.
        results: The runs.
    """
    means = {value: results.values(name, column["measure"]).mean() for name, value in column["choice"].items()}
    known = [mean for mean in means.values() if not np.isnan(mean)]
    best = max(known, default=inf)
    return f"{max(value for value in means if means[value] >= best - column['within']):g}" if known else "-"


def write_csv(block: Spec, results: Results, path: Path) -> None:
    """Write the values of each seed in the columns that have a name in the file."""
    frames = []
    for row in rows_of(block, results, results.part.variables):
        series = {column["csv"]: results.values(column) for column in row if "csv" in column}
        frames.append(pd.DataFrame(series).assign(method=row[0], seed=results.part.place.seeds))
    pd.concat(frames).set_index(["method", "seed"]).to_csv(path, float_format="%.4f")
