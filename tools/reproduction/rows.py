"""Claims as rows of settings: the kind of comparison, what is compared, by what margin, and the sentence."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, ClassVar

from reproduction.claims import OURS, Claim, Floats, any_of, counted, paired, spread, within
from reproduction.items import listed
from reproduction.results import Results

Values = Callable[..., Floats]  # of a series and a measure, such as ``Results.values``


@dataclass(kw_only=True)
class Row:
    """A row of any kind.

    Attributes:
        claim: The sentence.
        expected: What the measurement should be.
        group: Verdicts are counted by it.
        needs: Labels of curves without which nothing is claimed; ``other`` for the figure that is compared with.
        ours: Whether the claim is a check of our own.
        baselines: Whether it is an order of baselines that the paper's tables have, and no sentence of it.
        printed: What stands as the paper's numbers; by default the same comparison of the numbers that it prints.
        measure: Of all series that have none of their own.
        digits: Of the numbers that are shown.
        labels: What precedes these numbers.
        between: What separates them.
        lost_from: A ratio of times from which on nothing is gained.
    """

    claim: str = ""
    expected: str = ""
    group: str = ""
    needs: Sequence[str] = ()
    ours: bool = False
    baselines: bool = False
    printed: str | None = None
    measure: Any = None
    digits: int = 2
    labels: Sequence[object] = ()
    between: str = ", "
    lost_from: float = inf

    def decide(self, results: Results) -> list[Claim]:
        """The claims with their verdicts."""
        raise NotImplementedError

    def claims(self, results: Results) -> list[Claim]:
        """The same beside what the paper prints."""
        claims = [claim._replace(baselines=self.baselines) for claim in self.decide(results)]
        printed = OURS if self.ours else self.printed
        return claims if printed is None else [claim._replace(printed=printed) for claim in claims]

    def text(self, series: Iterable[Floats]) -> str:
        """Values as means over the seeds with their spreads."""
        texts = [spread(values, self.digits) + " (lost)" * bool(values.mean() >= self.lost_from) for values in series]
        if self.labels:
            texts = [f"{label}: {text}" for label, text in zip(self.labels, texts, strict=True)]
        return self.between.join(texts)


@dataclass(kw_only=True)
class Comparison(Row):
    """A row about series of values: names of runs, numbers, or what ``Results.values`` takes besides."""

    def decide(self, results: Results) -> list[Claim]:
        """The claim, beside the same numbers of the paper if it prints all of them."""
        claim = self.compare(partial(results.values, usual=self.measure))
        if self.printed is None and results.printed:
            with suppress(KeyError):
                claim = claim._replace(printed=self.compare(results.printed_values).measured)
        return [claim]

    def compare(self, values: Values) -> Claim:
        """The claim about some values."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Rises(Comparison):
    """Series rise from one to the next.

    Attributes:
        of: The series.
        until: Number of series that rise; the others are only shown.
        below: What the last one is below.
    """

    of: Sequence[Any]
    until: int | None = None
    below: float | None = None
    sign: ClassVar[int] = 1

    def compare(self, values: Values) -> Claim:
        """The claim about some values."""
        series = [values(name) for name in self.of]
        differences = [self.sign * (after - before) for before, after in pairwise(series[: self.until])]
        if self.below is not None:
            differences.append(self.below - series[-1])
        expected = self.expected or type(self).__name__.lower()
        return paired(self.claim, self.text(series), expected, *differences)


class Falls(Rises):
    """Series fall from one to the next."""

    sign = -1


@dataclass(kw_only=True)
class Above(Comparison):
    """A series is above others.

    Attributes:
        left: The series.
        right: The others.
        margin: By how much it may be below them.
        any: Whether to be above one of them is enough.
        shown: What stands as measured: ``left``, ``right``, the ``gap``, ``all``, or other series.
    """

    left: Any
    right: Any
    margin: Any = 0
    any: bool = False
    shown: Any = "all"
    sign: ClassVar[int] = 1

    def compare(self, values: Values) -> Claim:
        """The claim about some values."""
        left = values(self.left)
        rights = [values(series) for series in listed(self.right)]
        gaps = [left - right for right in rights]
        choices = {"left": [left], "right": rights, "gap": gaps, "all": [left, *rights]}
        shown = map(values, self.shown) if isinstance(self.shown, list) else choices[self.shown]
        decide = any_of if self.any else paired
        return decide(self.claim, self.text(shown), self.expected, *self.differences(gaps, values))

    def differences(self, gaps: Sequence[Floats], values: Values) -> list[Floats]:
        """What has to be above 0."""
        return [self.sign * gap + values(self.margin) for gap in gaps]


class Below(Above):
    """A series is below others."""

    sign = -1


@dataclass(kw_only=True)
class Within(Above):
    """A series is near others.

    Attributes:
        band: The largest difference.
    """

    band: float

    def differences(self, gaps: Sequence[Floats], values: Values) -> list[Floats]:
        """What has to be above 0."""
        return [side for gap in gaps for side in within(gap, self.band)]


@dataclass(kw_only=True)
class Near(Comparison):
    """Each of several series is near what is wanted of it.

    Attributes:
        of: The series.
        wanted: A number or a series for each.
        bands: The largest difference of each.
    """

    of: Sequence[Any]
    wanted: Sequence[Any]
    bands: Sequence[float]

    def compare(self, values: Values) -> Claim:
        """The claim about some values."""
        series = [values(name) for name in self.of]
        gaps = [measured - values(wanted) for measured, wanted in zip(series, self.wanted, strict=True)]
        sides = [side for gap, band in zip(gaps, self.bands, strict=True) for side in within(gap, band)]
        return paired(self.claim, self.text(series), self.expected, *sides)


def verdicts(groups: Sequence[tuple[str, Claim]]) -> str:
    """How many claims of each group have each verdict, as lines of Markdown."""
    names = dict.fromkeys(group for group, _ in groups if group)
    words = {name: [claim.word for group, claim in groups if group == name] for name in names}
    return "".join(f"- {name}: {counted(each)}\n" for name, each in words.items())
