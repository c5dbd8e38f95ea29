"""How errors are spread over clients, and what the tail of a curve gains over that of a reference."""

from collections.abc import Callable
from functools import partial

import numpy as np

from pfl_lightning.report.compare_curves import Curve, Curves
from pfl_lightning.report.compare_runs import CALLS
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
    return sorted(set.intersection(*({run.seed for run in curve.runs} for curve in curves)))


def differences(curve: Curve, reference: Curve, statistic: Callable[[Floats], float]) -> list[float]:
    """A statistic of the final errors minus that of the reference, for each seed that both have."""
    values, baseline = (
        {run.seed: statistic(errors) for run, errors in zip(compared.runs, compared.final_errors, strict=True)}
        for compared in (curve, reference)
    )
    return [values[seed] - baseline[seed] for seed in common_seeds([curve, reference])]


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
