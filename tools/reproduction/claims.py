"""Claims of a paper, and whether our measurements support them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Floats = NDArray[np.float64]


class Claim(NamedTuple):
    """A claim of a paper beside our measurement.

    Attributes:
        claim: What the paper claims.
        measured: What we measured.
        expected: What the measurement should be.
        passed: Whether it is.
    """

    claim: str
    measured: str
    expected: str
    passed: bool


def trend(claim: str, values: Sequence[Floats | float], expected: str = "falls", digits: int = 2) -> Claim:
    """That the means over the seeds fall from one value to the next, or rise."""
    means = [float(np.mean(value)) for value in values]
    passed = all(after > before if expected == "rises" else after < before for before, after in pairwise(means))
    return Claim(claim, listed(values, digits), expected, passed)


def better(claim: str, first: Floats | float, second: Floats | float, expected: str) -> Claim:
    """That the first mean over the seeds is above the second."""
    return Claim(claim, listed((first, second)), expected, bool(np.mean(first) > np.mean(second)))


def about(what: str, claims: Sequence[Claim]) -> list[Claim]:
    """The claims, which say what they are about, if anything."""
    return [claim._replace(claim=f"{what}: {claim.claim}") if what else claim for claim in claims]


def show(claims: Sequence[Claim]) -> None:
    """Print a table of the claims."""
    table = Table("claim", "measured", "expected", "holds")
    for claim, measured, expected, passed in claims:
        table.add_row(claim, measured, expected, "yes" if passed else "NO")
    if any("±" in claim.measured for claim in claims):
        table.caption = "mean ± sample standard deviation over the seeds"
    Console().print(table)


def spread(values: Floats, digits: int = 2) -> str:
    """Mean over the seeds, with their sample standard deviation if there are several; nan is a seed's "never"."""
    known = values[~np.isnan(values)]
    never = len(values) - len(known)
    text = f"{known.mean():.{digits}f}" if len(known) else "never"
    if len(known) > 1:
        text += f" ± {known.std(ddof=1):.{digits}f}"
    return f"{text} (never for {never} of {len(values)} seeds)" if never and len(known) else text


def deviation(values: Floats) -> float:
    """Sample standard deviation over the seeds, 0 for a single one."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def listed(values: Iterable[Floats | float], digits: int = 2) -> str:
    """Numbers in a row, or means over the seeds with their spreads."""
    return ", ".join(spread(np.atleast_1d(value), digits) for value in values)
