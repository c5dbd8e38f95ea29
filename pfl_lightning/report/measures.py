"""What is measured of curves: how errors are spread over clients, and what was spent up to each evaluation."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from pfl_lightning.report.compare_curves import Curve, Curves
from pfl_lightning.report.compare_runs import CALLS, LINK_BITS
from pfl_lightning.report.run_files import Clients, Floats, Ints

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


TEST: dict[str, Callable[[Floats], float]] = {
    "mean": lambda errors: float(errors.mean()),
    **{f"p{percent}": partial(np.percentile, q=percent) for percent in (10, 50, 90)},
    "worst": lambda errors: float(errors.max()),
    "superquantile 10 %": superquantile,
}
"""Statistics of the test errors, or losses; each client counts the same."""

TRAIN: dict[str, Callable[[Clients], float]] = {
    "mean": lambda clients: float(np.average(clients.loss, weights=clients.samples)),
    "p90": lambda clients: weighted_p90(clients.loss, clients.samples),
}
"""Statistics of the training losses; clients count by their samples, as in the objective of training."""


def reference_of(curves: Curves) -> Curve:
    """The curve that the others are compared with: the first whose method is a baseline, else the first."""
    return next((curve for curve in curves if curve.runs[0].label.is_baseline and not curve.doubled), curves[0])


def common_seeds(curves: Curves) -> list[int]:
    """Seeds that all curves have."""
    return sorted(set.intersection(*(set(curve.seeds) for curve in curves)))


def differences(curve: Curve, reference: Curve, statistic: Callable[[Floats], float]) -> list[float]:
    """A statistic of the final errors minus that of the reference, for each seed that both have."""
    errors = dict(zip(curve.seeds, curve.final_errors, strict=True))
    baseline = dict(zip(reference.seeds, reference.final_errors, strict=True))
    return [statistic(errors[seed]) - statistic(baseline[seed]) for seed in common_seeds([curve, reference])]


def evaluate_training(curves: Curves) -> bool:
    """Whether all clients' training losses are known."""
    return all(curve.evaluates("train") for curve in curves)


def count_sums(curves: Curves) -> bool:
    """Whether any run counts the sums that the server asks for; each is a secure aggregation."""
    return any(CALLS in run.logged for curve in curves for run in curve.runs)


def over_rounds(curve: Curve, split: str, name: str) -> Floats:
    """A statistic at each evaluation, of the test errors or of the training losses.

    Args:
        curve: The curve.
        split: ``test`` or ``train``; it must be evaluated.
        name: ``mean`` or ``p90``.

    Returns:
        The statistic, ``[seeds, evaluations]``.
    """

    def statistic(clients: Clients) -> float:
        if split == "train":
            return TRAIN[name](clients)
        return TEST[name](curve.score_kind.errors(clients.scores(curve.score_kind)))

    evaluations = [curve.results(split, round_index) for round_index in curve.rounds.tolist()]
    return np.array([list(map(statistic, seeds)) for seeds in evaluations]).T


BITS = {1e12: "Tbit", 1e9: "Gbit", 1e6: "Mbit", 1e3: "kbit", 1.0: "bit"}
SAMPLES = {1e9: "billion samples", 1e6: "million samples", 1e3: "thousand samples", 1.0: "samples"}


class Cost(NamedTuple):
    """What grows over the rounds.

    Attributes:
        name: Name in files and columns.
        words: What is spent, in the title of a table.
        axis: What is spent, at the axis of a figure, with a place for the unit.
        units: Names of units by their size, the largest first.
        of: What a curve has spent, ``[seeds, evaluations]``.
        title: Name of its panel in a figure.
        tag: The logged count, which older runs lack; empty if all have it.
    """

    name: str
    words: str
    axis: str
    units: Mapping[float, str]
    of: Callable[[Curve], Floats]
    title: str = ""
    tag: str = ""

    def known(self, curves: Curves) -> bool:
        """Whether all curves have the count."""
        return not self.tag or all(curve.logs(self.tag) for curve in curves)

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
    of = partial(Curve.times, communication_time=communication_time)
    return Cost("seconds", "simulated seconds", "simulated time (s)", {1.0: "s"}, of, title)


def _count(name: str, words: str, axis: str, units: Mapping[float, str], tag: str, title: str = "") -> Cost:
    return Cost(name, words, axis, units, lambda curve: curve.until(tag), title, tag)


ROUNDS = Cost(
    "rounds",
    "communication rounds",
    "communication rounds",
    {1.0: "rounds"},
    lambda curve: curve.stack(lambda run: run.rounds.astype(float)),
)
COMMUNICATION = _count(
    "bits", "communication of all clients", "communication ({})", BITS, "bits/total", "all clients, as encoded"
)
# by the formula of FedMac's paper (Liu et al., arXiv:2107.05330, Figure 6)
LINK = _count(
    "link_bits", "communication of a client", "communication ({})", BITS, LINK_BITS, "one client, 64 bits a value"
)
TRAINING = _count(
    "samples",
    "samples trained on by all clients",
    "training, all clients and epochs ({})",
    SAMPLES,
    "samples/total",
)
