"""Tables of means over seeds, as Markdown and CSV."""

import re
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
# what ends a cell or begins HTML, and the address of a link or picture; numbers may be < 1, and settings lists
_MARKS = re.compile(r"[\\|]|<(?=[a-zA-Z/!?])|(?<=\])\(")
_SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_LATEX = str.maketrans({**_SIGNS, **{sign: f"\\{sign}" for sign in "%_&#${}"}})
_FORMULA = ("=", "+", "-", "@")  # what cells begin with that a spreadsheet computes


class Markup(str):
    """Text that is Markdown already."""


class Table(NamedTuple):
    """A table for a paper.

    Attributes:
        name: Name of its files, without their ending.
        rows: Its rows as numbers; all have the same keys.
        text: The same in Markdown, in readable units.
        latex: The same in LaTeX; empty for tables that have none.
    """

    name: str
    rows: Rows
    text: str
    latex: str = ""

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
    cells = [
        (*(row[name] for name in first), *(seeds_cell(row, key.format(name), score_kind, sign) for name in names))
        for row in rows
    ]
    return markdown(title, (*first, *names), cells)


def seeds_cell(row: Row, name: str, score_kind: ScoreKind, sign: str = "") -> str:
    """Mean and deviation of what ``over_seeds`` made."""
    mean = row[name]
    spread = row[f"{name}_seed_std"]
    if isnan(mean):
        return "-"
    text = f"{score_kind.scale * mean:{sign}.{score_kind.digits}f}"
    return text if isnan(spread) else f"{text} ± {score_kind.show(spread)}"


def seeds_latex(name: str, title: str, rows: Rows, names: Mapping[str, bool], score_kind: ScoreKind) -> str:
    """A LaTeX table of what ``over_seeds`` made, with rules of booktabs and the best value of each column in bold.

    Args:
        name: The end of its label.
        title: The caption.
        rows: The rows, whose ``method`` is shown first.
        names: Names of the columns with values, and whether more is better.
        score_kind: Gives the unit and the digits.
    """
    best = {}
    for column, more_is_better in names.items():
        known = [row[column] for row in rows if not isnan(row[column])]
        best[column] = (max if more_is_better else min)(known, default=nan)
    lines = []
    for row in rows:
        cells = [latex_text(row["method"])]
        for column in names:
            cell = latex_text(seeds_cell(row, column, score_kind))
            is_best = score_kind.show(row[column]) == score_kind.show(best[column])
            cells.append(rf"\textbf{{{cell}}}" if is_best and not isnan(row[column]) else cell)
        lines.append(f"    {' & '.join(cells)} " + r"\\")
    header = " & ".join(map(latex_text, ("method", *names)))
    body = "\n".join(lines)
    return rf"""% needs \usepackage{{booktabs}}
\begin{{table}}
  \centering
  \caption{{{latex_text(title)}}}
  \label{{tab:{name}}}
  \begin{{tabular}}{{l{"r" * len(names)}}}
    \toprule
    {header} \\
    \midrule
{body}
    \bottomrule
  \end{{tabular}}
\end{{table}}
"""


def cost_cell(value: float, unknown: str = "-") -> str:
    """A cost, such as seconds, with at least three digits."""
    return unknown if isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def latex_text(text: Any) -> str:
    """LaTeX of one line that shows a text."""
    return " ".join(str(text).split()).translate(_LATEX)


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with a line above it; all is shown as it is, but ``Markup``."""
    cells = [list(map(shown_as_is, row)) for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    rule = "|".join("-" * (width + 2) for width in widths)
    lines.insert(1, f"|{rule}|")
    return "\n".join((shown_as_is(title), "", *lines, ""))


def shown_as_is(value: Any) -> str:
    r"""Markdown of one line that shows a text and obeys nothing in it: names in a stranger's run may be anything.

    Examples:
        >>> shown_as_is("a|b <script> ![](http://x)")
        'a\\|b \\<script> ![]\\(http://x)'
    """
    return value if isinstance(value, Markup) else _MARKS.sub(r"\\\g<0>", " ".join(str(value).split()))


def write_csv(rows: Rows, path: Path) -> None:
    """Write rows; a nan becomes an empty cell, and text that would be a formula in a spreadsheet gets an apostrophe."""
    import pandas as pd

    def cell(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(_FORMULA) else value

    pd.DataFrame(rows).map(cell).to_csv(path, index=False)
