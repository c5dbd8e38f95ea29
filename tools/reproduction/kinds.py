"""Kinds of claims that are computations of their own, and the claims of rows of any kind."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from pfl_lightning.report import Curve
from pfl_lightning.system import TwoPopulation
from reproduction.claims import FAILS, HOLDS, INCONCLUSIVE, OURS, Claim, Floats, paired, spread, within
from reproduction.items import Spec, Variables, construct, expanded, kind_of
from reproduction.measures import REACHED, logged
from reproduction.results import Results, number_of
from reproduction.rows import Above, Below, Falls, Near, Rises, Row, Within

DRAWS = 2000  # of seeds and test devices
SPEED_DRAWS = 200  # of the clients' speeds
TIED = 1.0  # points of the mean accuracy over time within which two curves are tied
GRID = 200  # points of time
UNSTEADY = 5.0  # points: a published number that spreads so much says nothing


@dataclass(kw_only=True)
class OnPar(Row):
    """The mean error of what has the smallest tail is at most a margin above a reference's.

    Attributes:
        reference: The reference.
        others: What may have the smallest tail; ``BEST`` in the claim is the label of the one that has.
        margin: Points of the error.
    """

    reference: str
    others: Sequence[str]
    margin: float

    def decide(self, results: Results) -> list[Claim]:
        """The claim with its verdict."""
        tails = {name: results.values(name, {"error": {"statistic": "p90"}}).mean() for name in self.others}
        best = min(tails, key=lambda name: tails[name])
        names = [self.reference, *self.others]
        means = {name: results.values(name, {"error": {"statistic": "mean"}}) for name in names}
        claim = self.claim.replace("BEST", str(self.labels[names.index(best)]))
        gap = means[best] - means[self.reference]
        return [paired(claim, self.text(means.values()), self.expected, self.margin - gap)]


@dataclass(kw_only=True)
class BelowByDraws(Row):
    """A percentile of the clients' errors is below a reference's for other clients of the same kind, too.

    All seeds have the same test clients, so that their spread does not tell this; draws of clients and seeds do (the
    percentile bootstrap of Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 1979).

    Attributes:
        left: The runs.
        right: Those of the reference.
        percentile: The percentile.
    """

    left: str
    right: str
    percentile: float

    def decide(self, results: Results) -> list[Claim]:
        """The claim with its verdict."""
        errors = [np.array(results.curve(name).final("error")) for name in (self.left, self.right)]

        def gap(seeds: NDArray[np.int64], clients: NDArray[np.int64]) -> float:
            drawn = (matrix[np.ix_(seeds, clients)] for matrix in errors)
            tail, reference = (np.percentile(matrix, self.percentile, axis=1) for matrix in drawn)
            return float(100 * (tail - reference).mean())

        seeds, clients = map(np.arange, errors[0].shape)
        drawn = bootstrap(
            (seeds, clients), gap, n_resamples=DRAWS, vectorized=False, method="percentile", random_state=0
        )
        low, high = drawn.confidence_interval
        measured = f"{gap(seeds, clients):.1f}, from {low:.1f} to {high:.1f}"
        claim = self.claim.replace("CLIENTS", str(len(clients)))
        return [Claim(claim, measured, "below 0", HOLDS if high < 0 else FAILS if low > 0 else INCONCLUSIVE, OURS)]


@dataclass(kw_only=True)
class Agrees(Row):
    """A value is as near to the published one as a band, or as its standard deviation if that is larger.

    There is no claim where the published trials differ by so much that any number would agree.

    Attributes:
        left: The runs.
        band: Points.
    """

    left: str
    band: float

    def decide(self, results: Results) -> list[Claim]:
        """The claim with its verdict, if there is one."""
        printed = results.printed.get(self.left)
        if printed is None:
            return []
        deviation = float(str(printed).partition("± ")[2] or 0)
        if deviation > UNSTEADY:
            return []
        number = number_of(printed)
        band = max(self.band, deviation)
        values = results.values(self.left, self.measure)
        measured = spread(values, nan="ended early")
        claim = paired(self.claim, measured, f"{number:.2f} ± {band:.2f}", *within(values - number, band))
        return [claim._replace(printed=printed if deviation else f"{number:.2f}")]


@dataclass(kw_only=True)
class RisesThenFalls(Row):
    """What the runs log in each round grows first, and then falls.

    Attributes:
        of: The runs.
        tag: What they log.
        start: What it is before the first round, if that is known.
    """

    of: str
    tag: str
    start: float | None = None

    def decide(self, results: Results) -> list[Claim]:
        """The claim with its verdict."""
        rounds, values = logged(results.runs_of(self.of)[0], self.tag, self.start)
        peak = int(values.mean(0).argmax())
        claim = f"{self.claim} after rounds {rounds[0]}, {rounds[peak]} (the largest) and {rounds[-1]}"
        measured = ", ".join(f"{values[:, at].mean():.2g}" for at in (0, peak, -1))
        differences = [values[:, peak] - values[:, at] for at in (0, -1)]
        return [paired(claim, measured, "rises, then falls", *differences)]


@dataclass(kw_only=True)
class BestOverTime(Row):
    """One curve is the best of all, or tied, in mean accuracy until the first runs end.

    Attributes:
        of: Its label.
        communication: Seconds of a round's communication.
    """

    of: str
    communication: float = 0.0

    def decide(self, results: Results) -> list[Claim]:
        """The claim with its verdict."""
        curves = results.labelled
        times = {label: curve.times(self.communication) for label, curve in curves.items()}
        end = min(float(each[:, -1].min()) for each in times.values())
        seconds = np.linspace(0, end, GRID)
        areas = {label: 100 * mean_until(curve.means, times[label], seconds) for label, curve in curves.items()}
        best = max(areas, key=lambda label: areas[label].mean())
        measured = f"{spread(areas[self.of], 1)}; the best is {best}, {spread(areas[best], 1)}"
        claim = f"{self.claim} (mean accuracy in the first {end:.0f} seconds, %)"
        behind = [areas[label] - areas[self.of] for label in areas if label != self.of]
        return [paired(claim, measured, self.expected, *(TIED - gap for gap in behind))]


def mean_until(means: Floats, times: Floats, seconds: Floats) -> Floats:
    """Mean at some seconds of what was measured at other times, ``[seeds]``."""
    return np.array([np.interp(seconds, *each).mean() for each in zip(times, means, strict=True)])


@dataclass(kw_only=True)
class Worst(Row):
    """Some curves end below all others.

    Attributes:
        of: Their labels.
    """

    of: Sequence[str]

    def decide(self, results: Results) -> list[Claim]:
        """The claim with its verdict."""
        ends = {name: 100 * curve.means[:, -1] for name, curve in results.labelled.items()}
        order = sorted(ends, key=lambda name: float(ends[name].mean()))
        measured = ", ".join(f"{name} {spread(ends[name], 1)}" for name in order[:3])
        gaps = [ends[name] - ends[low] for name in ends if name not in self.of for low in self.of]
        return [paired(self.claim, measured, self.expected, *gaps)]


KINDS: Mapping[str, type[Row]] = {
    "rises": Rises,
    "falls": Falls,
    "above": Above,
    "below": Below,
    "within": Within,
    "near": Near,
    "on_par": OnPar,
    "below_by_draws": BelowByDraws,
    "agrees": Agrees,
    "rises_then_falls": RisesThenFalls,
    "best_over_time": BestOverTime,
    "worst": Worst,
}


def row_of(block: Spec, where: str = "claims") -> Row:
    """The row that some settings describe.

    Raises:
        PflError: If there is no such kind, or it has no such key.
    """
    kind, settings = kind_of(KINDS, block, where)
    return construct(kind, settings, where)


def claims_of(rows: Sequence[str | Spec], results: Results) -> Iterator[tuple[str, Claim]]:
    """The claims of some rows with their group; a row that is a text stands for the paper's rows of this name."""
    for block in rows_in(rows, results.part.item.common.claims, results.part.variables):
        row = row_of(block)
        if all(map(results.has, row.needs)):
            yield from ((row.group, claim) for claim in row.claims(results))


def rows_in(
    rows: Sequence[str | Spec], named: Mapping[str, Sequence[str | Spec]], variables: Variables
) -> Iterator[Spec]:
    """All rows with their variables filled in, for some those of the paper with a name."""
    for row in rows:
        if isinstance(row, str):
            yield from rows_in(named[row], named, variables)
        else:
            yield from expanded(row, variables)


def slower_with_stragglers(panels: Mapping[float, Results], fast: str, slow: str) -> list[Claim]:
    """More stragglers cost more time, with doubling less than without.

    The slowest of few clients is a matter of luck, so the time is the mean over many draws of all clients' speeds: of
    each run, what the rounds until its accuracy would have taken. The speeds do not change what a method without
    doubling learns; with doubling they choose who learns first, but no client's data depend on its speed.

    Args:
        panels: The panels by the share of stragglers.
        fast: Label of the curve with doubling.
        slow: That of the one without.
    """
    few, many = sorted(panels)
    curves = {share: results.labelled for share, results in panels.items()}
    goal = REACHED * curves[few][slow].means[:, -1]
    seconds = {name: [mean_seconds(curves[share][name], goal, share) for share in (few, many)] for name in (slow, fast)}
    claims = []
    for name, (first, second) in seconds.items():
        text = (
            f"{name} needs longer with {many:.0%} stragglers than with {few:.0%} (seconds, mean of {SPEED_DRAWS} draws)"
        )
        later = mean_seconds(curves[many][name], goal, many, bound=True)
        claims.append(paired(text, f"{spread(first, 1)}; {spread(second, 1)}", "rising", later - first))
    lost = {name: second - first for name, (first, second) in seconds.items()}
    measured = ", ".join(f"{name} {spread(values, 1)}" for name, values in lost.items())
    text = "Doubling softens what more stragglers cost (seconds lost)"
    return [*claims, paired(text, measured, "less with doubling", lost[slow] - lost[fast])]


def mean_seconds(curve: Curve, goal: Floats, stragglers: float, bound: bool = False) -> Floats:
    """Seconds until each seed's accuracy, averaged over draws of the speeds; the fastest clients take part.

    Args:
        curve: A curve whose clients all belong to the pool.
        goal: The accuracies, ``[seeds]``.
        stragglers: Share of slow clients.
        bound: Whether a run that never gets there counts with all its seconds, which is less than it would need.

    Returns:
        Nan for never, ``[seeds]``.
    """
    clients = len(curve.final("score")[0])
    draws = [np.sort(TwoPopulation(stragglers, seed=seed).times(0, clients)) for seed in range(SPEED_DRAWS)]
    of_a_round = np.mean(draws, axis=0)
    sizes = curve.cohorts.to_numpy(dtype=int).T
    passed = of_a_round[sizes - 1].cumsum(1)  # after each round, [seeds, rounds]
    times = np.insert(passed, 0, 0, axis=1)[:, curve.rounds]
    _, seconds = curve.reach(goal[:, None], times)
    return np.where(np.isnan(seconds), times[:, -1], seconds) if bound else seconds
