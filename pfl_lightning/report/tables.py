"""Tables of means over seeds, as Markdown and CSV."""

import io
from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box, table
from rich.console import Console

from pfl_lightning.score_kind import ScoreKind

Row = dict[str, Any]
Rows = list[Row]
OVER_SEEDS = "mean ± standard deviation over seeds"


class Table(NamedTuple):
    """A table for a paper.

    Attributes:
        name: Name of its files, without their ending.
        rows: Its rows as numbers; all have the same keys.
        text: The same in Markdown, in readable units.
    """

    name: str
    rows: Rows
    text: str

    @property
    def says_something(self) -> bool:
        """Whether anything was reached, where that is what the table is about."""
        return any(row.get("reached", True) for row in self.rows)


def over_seeds(values: Mapping[str, Iterable[float]]) -> Row:
    """Two cells of a row for each name: the mean over the seeds, and ``<name>_seed_std``.

    The latter is the sample standard deviation, nan for one seed.
    """
    row: Row = {}
    for name, numbers in values.items():
        array = np.array(list(numbers))
        row[name] = float(array.mean()) if len(array) else nan
        row[f"{name}_seed_std"] = float(array.std(ddof=1)) if len(array) > 1 else nan
    return row


def seeds_markdown(
    title: str,
    rows: Rows,
    names: Iterable[str],
    score_kind: ScoreKind,
    first: Sequence[str] = ("method",),
    key: str = "{}",
    sign: str = "",
) -> str:
    """A table of what ``over_seeds`` made.

    Args:
        title: The line above it.
        rows: The rows.
        names: Names of the columns with values.
        score_kind: Gives the unit and the digits.
        first: Columns before them, which are shown as they are.
        key: What the values are called in a row, with the name of the column in it.
        sign: ``+`` to show it of positive numbers too.
    """
    names = tuple(names)
    cells = [
        (*(row[name] for name in first), *(_with_spread(row, key.format(name), score_kind, sign) for name in names))
        for row in rows
    ]
    return markdown(title, (*first, *names), cells)


def _with_spread(row: Row, name: str, score_kind: ScoreKind, sign: str) -> str:
    if isnan(row[name]):
        return "-"
    spread = row[f"{name}_seed_std"]
    value = f"{score_kind.scale * row[name]:{sign}.{score_kind.digits}f}"
    return value if isnan(spread) else f"{value} ± {score_kind.show(spread)}"


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with a line above it."""
    grid = table.Table(*columns, box=box.MARKDOWN)
    for row in rows:
        grid.add_row(*map(str, row))
    text = io.StringIO()
    Console(file=text, width=1000, markup=False, emoji=False, force_terminal=False).print(grid)
    return "\n".join((title, "", *(line.rstrip() for line in text.getvalue().splitlines() if line.strip()), ""))


def write_csv(rows: Rows, path: Path) -> None:
    """Write rows; a nan becomes an empty cell."""
    import pandas as pd

    pd.DataFrame(rows).to_csv(path, index=False)
