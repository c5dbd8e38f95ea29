"""Claims of a paper, and whether our measurements support them, by paired tests over the seeds."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf, isnan, nan
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from pfl_lightning.report.measures import LEVEL, half_width

Floats = NDArray[np.float64]
Key = TypeVar("Key")

HOLDS, FAILS, INCONCLUSIVE = VERDICTS = ("holds", "fails", "inconclusive")
MOST = 1000  # seeds that are worth asking for
OURS = "our own check"  # stands where the paper's numbers would


class Claim(NamedTuple):
    """A claim of a paper beside our measurement.

    Attributes:
        claim: What the paper claims.
        measured: What we measured.
        expected: What the measurement should be.
        verdict: Whether it is: one of ``VERDICTS``, the last with the number of seeds that would tell.
        printed: What the paper measured, where it prints numbers; ``OURS`` if the claim is not the paper's.
        baselines: Whether it is an order of baselines in a table of the paper, which no sentence of it claims.
    """

    claim: str
    measured: str
    expected: str
    verdict: str
    printed: str = ""
    baselines: bool = False

    @property
    def word(self) -> str:
        """The verdict alone."""
        return self.verdict.partition(";")[0]


def paired(claim: str, measured: str, expected: str, *differences: Floats) -> Claim:
    """A claim that some differences between runs of the same seeds are above 0.

    Args:
        claim: The claim.
        measured: What was measured.
        expected: What it should be.
        differences: The differences, ``[seeds]`` each; nan where a run never reached what is compared.

    Returns:
        It holds if the intervals of all means are above 0, and fails if one is nowhere above 0, or if a seed is nan.
        One of many can be below 0 by chance, so that the intervals by which it fails are wider for their number, as in
        ``any_of``.
    """
    if all(interval(each)[0] > 0 for each in differences):
        return Claim(claim, measured, expected, HOLDS)
    level = shared_level(differences)
    if not all(interval(each, level)[1] > 0 for each in differences):
        return Claim(claim, measured, expected, FAILS)
    if below := [each for each in differences if each.mean() < 0]:  # one of which is enough to fail
        return Claim(claim, measured, expected, untold(min(seeds_needed(each, level) for each in below)))
    return Claim(claim, measured, expected, untold(max(map(seeds_needed, differences))))


def any_of(claim: str, measured: str, expected: str, *differences: Floats) -> Claim:
    """A claim that one of some differences is above 0, where the same seeds say which one; else as ``paired``.

    Returns:
        It holds if the interval of one mean is above 0, and fails if none reaches above 0. One of many can be above 0
        by chance, so that the intervals by which it holds are wider for their number (Bonferroni).
    """
    level = shared_level(differences)
    if any(interval(each, level)[0] > 0 for each in differences):
        return Claim(claim, measured, expected, HOLDS)
    open_ones = [each for each in differences if interval(each)[1] > 0]
    if not open_ones:
        return Claim(claim, measured, expected, FAILS)
    if above := [each for each in open_ones if each.mean() > 0]:  # one of which is enough to hold
        return Claim(claim, measured, expected, untold(min(seeds_needed(each, level) for each in above)))
    return Claim(claim, measured, expected, untold(max(map(seeds_needed, open_ones))))


def shared_level(differences: Sequence[Floats]) -> float:
    """The level of intervals that all together leave as much to chance as a single one of ``LEVEL`` (Bonferroni)."""
    return 1 - (1 - LEVEL) / len(differences)


def interval(differences: Floats, level: float = LEVEL) -> tuple[float, float]:
    """The t-interval of a mean over the seeds: endless for a single seed, a point where there are no seeds."""
    if differences.ndim == 0:
        return float(differences), float(differences)
    half = half_width(differences, level=level)
    return float(differences.mean() - half), float(differences.mean() + half)


def seeds_needed(differences: Floats, level: float = LEVEL) -> float:
    """How many seeds of the same mean and spread would tell it from 0; inf for too many, nan if there is no spread."""
    if len(differences) == 1:
        return nan
    seeds = np.arange(2.0, MOST + 1)
    tells = seeds[half_width(differences, seeds, level) < abs(differences.mean())]
    return float(tells[0]) if len(tells) else inf


def untold(seeds: float) -> str:
    """The verdict that so many seeds would tell."""
    if isnan(seeds):
        return f"{INCONCLUSIVE}; one seed has no spread"
    return f"{INCONCLUSIVE}; {'no few' if seeds == inf else f'{seeds:.0f}'} seeds would tell"


def within(differences: Floats, band: float) -> tuple[Floats, Floats]:
    """Differences that are above 0 if some others are at most a band away from 0."""
    return band - differences, band + differences


def about(what: str, claims: Sequence[Claim]) -> list[Claim]:
    """The claims, which say what they are about, if anything."""
    return [claim._replace(claim=f"{what}: {claim.claim}") if what else claim for claim in claims]


def counted(words: Iterable[str]) -> str:
    """How many claims have each verdict."""
    found = Counter(words)
    return ", ".join(f"{found[word]} {word}" for word in VERDICTS if found[word])


def show(claims: Sequence[Claim]) -> None:
    """Print a table of the claims."""
    table = Table("claim", "measured", "expected", "verdict", "in the paper")
    for claim in claims:
        table.add_row(claim.claim, claim.measured, claim.expected, claim.verdict, str(claim.printed))
    if any("±" in claim.measured for claim in claims):
        table.caption = "mean ± sample standard deviation over the seeds"
    Console().print(table)
    print(counted(claim.word for claim in claims))


def spread(values: Floats, digits: int = 2, nan: str = "never") -> str:
    """Mean over the seeds, with their sample standard deviation if there are several; a word for seeds that are nan."""
    values = np.atleast_1d(values)
    known = values[~np.isnan(values)]
    missing = len(values) - len(known)
    text = f"{known.mean():.{digits}f}" if len(known) else nan
    if len(known) > 1:
        text += f" ± {known.std(ddof=1):.{digits}f}"
    return f"{text} ({nan} for {missing} of {len(values)} seeds)" if missing and len(known) else text


def deviation(values: Floats) -> float:
    """Sample standard deviation over the seeds, 0 for a single one."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
