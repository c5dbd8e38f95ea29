"""Tables of means over seeds, as Markdown and CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from pfl_lightning.quantity import Quantity

Rows = list[dict[str, Any]]
OVER_SEEDS = "mean ± standard deviation over seeds"


def over_seeds(name: str, values: Iterable[float]) -> dict[str, float]:
    """Two cells of a row: the mean over the seeds, and the sample standard deviation, nan for one seed."""
    array = np.array(list(values))
    spread = float(array.std(ddof=1)) if len(array) > 1 else nan
    return {name: float(array.mean()) if len(array) else nan, f"{name}_seed_std": spread}


def with_spread(row: Mapping[str, Any], name: str, quantity: Quantity, sign: str = "") -> str:
    """The text of what ``over_seeds`` made.

    Args:
        row: A row with both cells.
        name: Name of the first.
        quantity: Gives the unit and the digits.
        sign: ``+`` to show it of positive numbers too.
    """
    if isnan(row[name]):
        return "-"
    spread = row[f"{name}_seed_std"]
    value = f"{quantity.scale * row[name]:{sign}.{quantity.digits}f}"
    return value if isnan(spread) else f"{value} ± {quantity.show(spread)}"


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with a line above it."""
    table = Table(*columns, box=MARKDOWN)
    for row in rows:
        table.add_row(*map(str, row))
    told = io.StringIO()
    Console(file=told, width=1000).print(table)
    return "\n".join((title, "", *(line.rstrip() for line in told.getvalue().splitlines() if line.strip()), ""))


def bit_unit(largest: float) -> tuple[float, str]:
    """A unit for numbers of bits up to the largest: its size in bits, and its name.

    Examples:
        >>> bit_unit(697752960)
        (1000000.0, 'Mbit')
    """
    return _unit(largest, {1e12: "Tbit", 1e9: "Gbit", 1e6: "Mbit", 1e3: "kbit", 1.0: "bit"})


def sample_unit(largest: float) -> tuple[float, str]:
    """A unit for numbers of samples up to the largest: its size, and its name.

    Example:
        >>> sample_unit(2_300_000)
        (1000000.0, 'million samples')
    """
    return _unit(largest, {1e9: "billion samples", 1e6: "million samples", 1e3: "thousand samples", 1.0: "samples"})


def _unit(largest: float, units: Mapping[float, str]) -> tuple[float, str]:
    """The largest unit that a number reaches, else the last."""
    return next(((size, name) for size, name in units.items() if largest >= size), list(units.items())[-1])


def write_csv(rows: Rows, path: Path) -> None:
    """Write rows; a nan becomes an empty cell."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({key: "" if value != value else value for key, value in row.items()} for row in rows)
