"""Claims of a paper, and whether our measurements support them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table


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


def show(claims: Sequence[Claim]) -> None:
    """Print a table of the claims."""
    table = Table("claim", "measured", "expected", "holds")
    for claim, measured, expected, passed in claims:
        table.add_row(claim, measured, expected, "yes" if passed else "NO")
    if any("±" in claim.measured for claim in claims):
        table.caption = "mean ± sample standard deviation over the seeds"
    Console().print(table)


def spread(values: NDArray[np.float64], digits: int = 2) -> str:
    """Mean over the seeds, with their sample standard deviation if there are several; nan is a seed's "never"."""
    known = values[~np.isnan(values)]
    never = len(values) - len(known)
    text = f"{known.mean():.{digits}f}" if len(known) else "never"
    if len(known) > 1:
        text += f" ± {known.std(ddof=1):.{digits}f}"
    return f"{text} (never for {never} of {len(values)} seeds)" if never and len(known) else text
