"""What a paper says, checked on what comes out here."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Claim(NamedTuple):
    """Something that a paper says, and what came out here.

    Attributes:
        claim: What is said.
        measured: What came out.
        expected: What was to come out.
        passed: Whether it did.
    """

    claim: str
    measured: str
    expected: str
    passed: bool


def show(claims: Sequence[Claim]) -> None:
    """Print what came out."""
    table = Table("claim", "measured", "expected", "holds")
    for claim, measured, expected, passed in claims:
        table.add_row(claim, measured, expected, "yes" if passed else "NO")
    Console().print(table)
