"""SRPFL's claims across panels and figures: where the gain of doubling is smaller, and what stragglers cost."""

from collections.abc import Callable, Mapping

import numpy as np

from pfl_lightning.report import Curve
from pfl_lightning.system import TwoPopulation
from reproduction.claims import Claim, Floats, paired, spread
from reproduction.srpfl.measures import PAIRS, Curves, at_least, shown_ratio, targets, time_ratios

Comparison = Callable[[Curves, Curves], list[Claim]]  # of a panel with one of another figure

VISIBLE = 0.1  # least difference of time ratios that one sees in a figure
DRAWS = 200  # of the clients' speeds


def smaller_gain(than: str, least: float = 0.0) -> Comparison:
    """The gain of doubling is smaller than in another figure.

    Args:
        than: What the other is called.
        least: Least difference of the time ratios.
    """

    def check(curves: Curves, others: Curves) -> list[Claim]:
        own, other = (time_ratios(panel, PAIRS[0]) for panel in (curves, others))
        larger = time_ratios(curves, PAIRS[0], bound=True) - other  # what is never reached is no gain
        text = f"The gain of FedRep-SRPFL is smaller than {than} (time ratios here and there)"
        expected = "larger here" + (f" by {least:g} or more" if least else "")
        return [paired(text, f"{shown_ratio(own)}; {shown_ratio(other)}", expected, larger - least)]

    return check


def slower_with_stragglers(panels: Mapping[float, Curves]) -> list[Claim]:
    """More stragglers cost more time, with doubling less than without.

    The slowest of few clients is a matter of luck, so the time is the mean over many draws of all clients' speeds: of
    each run, what the rounds until its accuracy would have taken. The speeds do not change what a method without
    doubling learns; with doubling they choose who learns first, but no client's data depend on its speed.

    Args:
        panels: The curves by the share of stragglers.
    """
    few, many = sorted(panels)
    fast, slow = PAIRS[0]
    goal = targets(panels[few][slow])
    seconds = {name: [mean_seconds(panels[share][name], goal, share) for share in (few, many)] for name in (slow, fast)}
    claims = []
    for name, (first, second) in seconds.items():
        text = f"{name} needs longer with {many:.0%} stragglers than with {few:.0%} (seconds, mean of {DRAWS} draws)"
        later = mean_seconds(panels[many][name], goal, many, bound=True)
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
    clients = len(curve.final_scores[0])
    of_a_round = np.mean(
        [np.sort(TwoPopulation(stragglers, seed=seed).times(0, clients)) for seed in range(DRAWS)], axis=0
    )
    _, sizes = curve.cohorts
    passed = of_a_round[sizes.astype(int) - 1].cumsum(1)  # after each round, [seeds, rounds]
    times = np.insert(passed, 0, 0, axis=1)[:, curve.rounds]
    _, seconds = curve.reach(goal[:, None], times)
    return at_least(seconds, times) if bound else seconds
