"""Tables of means over seeds, as Markdown and CSV."""

from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pfl_lightning.score_kind import ScoreKind

if TYPE_CHECKING:
    import pandas as pd

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


def over_seeds(values: "Mapping[str, Iterable[float]] | pd.DataFrame") -> Row:
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

    def cell(row: Row, name: str) -> str:
        mean = row[name]
        spread = row[f"{name}_seed_std"]
        if isnan(mean):
            return "-"
        text = f"{score_kind.scale * mean:{sign}.{score_kind.digits}f}"
        return text if isnan(spread) else f"{text} ± {score_kind.show(spread)}"

    cells = [(*(row[name] for name in first), *(cell(row, key.format(name)) for name in names)) for row in rows]
    return markdown(title, (*first, *names), cells)


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with a line above it."""
    cells = [list(map(str, row)) for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    rule = "|".join("-" * (width + 2) for width in widths)
    lines.insert(1, f"|{rule}|")
    return "\n".join((title, "", *lines, ""))


def write_csv(rows: Rows, path: Path) -> None:
    """Write rows; a nan becomes an empty cell."""
    import pandas as pd

    pd.DataFrame(rows).to_csv(path, index=False)
