"""What is measured of curves: how errors are spread over clients, and what was spent up to each evaluation."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import stats

from pfl_lightning.report.compare_curves import Curve, Curves
from pfl_lightning.report.run_files import BITS, CALLS, LINK_BITS, ROUND, SAMPLES, Floats, Ints
from pfl_lightning.score_kind import ScoreKind

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95  # of the t-interval of a mean over the seeds
TAIL = 0.1  # share of the clients in the superquantile


def superquantile(errors: Floats) -> float:
    """Mean error of the worst 10 % of the clients; the client at the border counts with the share that is left."""
    place = TAIL * len(errors)
    inside = np.clip(place - np.arange(np.ceil(place)), 0, 1)
    return float(np.sort(errors)[::-1][: len(inside)] @ inside / place)


def weighted_p90(values: Floats, weights: Ints) -> float:
    """The smallest value that, with all smaller ones, has 90 % of the weight.

    See docs/evidence/derivations.md, Quantile.
    """
    order = np.argsort(values)
    mass = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(mass, 0.9)])


def worst_tenth(score_kind: ScoreKind) -> "Statistic":
    """Mean score of the worst 10 % of the clients; see ``superquantile``."""
    sign = -1 if score_kind.higher_is_better else 1
    return lambda scores: sign * superquantile(sign * scores)


Statistic = Callable[..., float]
TEST: dict[str, Statistic] = {
    "mean": lambda errors: float(errors.mean()),
    **{f"p{percent}": partial(np.percentile, q=percent) for percent in (10, 50, 90)},
    "worst": lambda errors: float(errors.max()),
    "superquantile 10 %": superquantile,
}
"""Statistics of the test errors, or losses; each client counts the same."""

TRAIN: dict[str, Statistic] = {
    "mean": lambda losses, samples: float(np.average(losses, weights=samples)),
    "p90": weighted_p90,
}
"""Statistics of the training losses; clients count by their samples, as in the objective of training."""


def half_width(differences: Floats, seeds: int | Floats | None = None, level: float = LEVEL) -> Floats:
    """Half of the t-interval of a mean over ``[seeds]``; endless for a single one.

    Args:
        differences: What is averaged, one for each seed.
        seeds: How many seeds of the same spread there would be; by default as many as there are.
        level: How often such an interval has the true mean in it.
    """
    seeds = len(differences) if seeds is None else seeds
    if len(differences) < 2:
        return np.array(np.inf)
    width: Floats = stats.t.ppf((1 + level) / 2, seeds - 1) * differences.std(ddof=1) / np.sqrt(seeds)
    return width


def statistics_of(
    curve: Curve, statistics: Mapping[str, Statistic], *columns: str, split: str = "test"
) -> "pd.DataFrame":
    """Statistics of what the clients got at the last evaluation: a row for each seed, a column for each statistic.

    Args:
        curve: The curve.
        statistics: The statistics by name, of some columns.
        columns: Columns of ``Curve.results``, such as ``error``.
        split: Whose results.
    """
    import pandas as pd

    clients = [curve.final(column, split) for column in columns]
    seeds = [run.seed for run in curve.runs]
    return pd.DataFrame({name: list(map(of, *clients)) for name, of in statistics.items()}, seeds)


def reference_of(curves: Curves) -> Curve:
    """The curve that the others are compared with: the first whose method is a baseline, else the first."""
    return next((curve for curve in curves if curve.runs[0].label.is_baseline and not curve.doubled), curves[0])


def common_seeds(curves: Curves) -> list[int]:
    """Seeds that all curves have."""
    return sorted(set.intersection(*({run.seed for run in curve.runs} for curve in curves)))


def evaluate_training(curves: Curves) -> bool:
    """Whether all clients' training losses are known."""
    return all(curve.evaluates("train") for curve in curves)


def count_sums(curves: Curves) -> bool:
    """Whether any run counts the sums that the server asks for; each is a secure aggregation."""
    return any(CALLS in run.logged for curve in curves for run in curve.runs)


def over_rounds(curve: Curve, split: str, name: str) -> Floats:
    """A statistic at each evaluation, of the test errors or of the training losses, ``[seeds, evaluations]``.

    Args:
        curve: The curve.
        split: ``test`` or ``train``; it must be evaluated.
        name: ``mean`` or ``p90``.
    """
    statistic, columns = (TRAIN[name], ["loss", "samples"]) if split == "train" else (TEST[name], ["error"])
    evaluations = [curve.results(split, evaluation) for evaluation in range(len(curve.rounds))]
    return np.array([[statistic(*seed[columns].to_numpy().T) for seed in seeds] for seeds in evaluations]).T


BIT_UNITS = {1e12: "Tbit", 1e9: "Gbit", 1e6: "Mbit", 1e3: "kbit", 1.0: "bit"}
SAMPLE_UNITS = {1e9: "billion samples", 1e6: "million samples", 1e3: "thousand samples", 1.0: "samples"}


class Cost(NamedTuple):
    """What grows over the rounds.

    Attributes:
        name: Name in files and columns.
        words: What is spent, in the title of a table.
        axis: What is spent, at the axis of a figure, with a place for the unit.
        units: Names of units by their size, the largest first.
        tag: The logged count; empty for simulated time.
        title: Name of its panel in a figure.
        communication_time: Simulated seconds that the communication of a round takes.
    """

    name: str
    words: str
    axis: str
    units: Mapping[float, str]
    tag: str = ""
    title: str = ""
    communication_time: float = 0.0

    def known(self, curves: Curves) -> bool:
        """Whether all curves have the count, which older runs lack."""
        return all(self.tag in run.counts for curve in curves for run in curve.runs)

    def of(self, curve: Curve) -> Floats:
        """What a curve has spent, ``[seeds, evaluations]``."""
        return curve.until(self.tag) if self.tag else curve.times(self.communication_time)

    def unit(self, largest: float) -> tuple[float, str]:
        """A unit for amounts up to the largest: its size, and its name.

        Example:
            >>> COMMUNICATION.unit(697752960)
            (1000000.0, 'Mbit')
        """
        return next((unit for unit in self.units.items() if largest >= unit[0]), list(self.units.items())[-1])


def simulated_time(communication_time: float) -> Cost:
    """Simulated seconds, if the communication of a round takes some of them."""
    title = f"{communication_time:g} s of communication per round"
    axis = "simulated time (s)"
    return Cost("seconds", "simulated seconds", axis, {1.0: "s"}, "", title, communication_time)


ROUNDS = Cost("rounds", "communication rounds", "communication rounds", {1.0: "rounds"}, ROUND)
COMMUNICATION = Cost(
    "bits", "communication of all clients", "communication ({})", BIT_UNITS, BITS, "all clients, as encoded"
)
# by the formula of FedMac's paper (Liu et al., arXiv:2107.05330, Figure 6)
LINK = Cost(
    "link_bits", "communication of a client", "communication ({})", BIT_UNITS, LINK_BITS, "one client, 64 bits a value"
)
TRAINING = Cost(
    "samples",
    "samples trained on by all clients",
    "training, all clients and epochs ({})",
    SAMPLE_UNITS,
    SAMPLES,
)
