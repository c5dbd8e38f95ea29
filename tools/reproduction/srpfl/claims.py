"""SRPFL's claims about one panel of its figures, evaluated on the mean over the seeds.

A seed that never reaches an accuracy has no time, and a mean with such a seed fulfils no claim.
"""

from collections.abc import Sequence

import numpy as np

from reproduction.claims import Claim, spread
from reproduction.srpfl.measures import (
    PAIRS,
    REACHED,
    Check,
    Curves,
    all_ratios,
    final_difference,
    finals,
    shown_ratio,
    time_ratios,
)

COMMUNICATION_TIMES = (0.0, 10.0, 100.0)
PUBLISHED_TIMES = (0.0, 1.0, 10.0)  # of a round: the published figures charge 10 and 100 once in about 10 rounds
NOISE = 0.03  # accuracies that differ by less agree
TIED = 0.01  # mean accuracies over time that differ by less are tied


def earlier(curves: Curves) -> list[Claim]:
    """The doubled variants reach the accuracy of their bases earlier."""
    claims = []
    for fast, slow in pairs_of(curves):
        ratios = time_ratios(curves, (fast, slow))
        text = f"{fast} reaches {REACHED:.0%} of {slow}'s final accuracy earlier (time ratio)"
        claims.append(Claim(text, spread(ratios), "< 1", ratios.mean() < 1))
    return claims


def agree_in_the_end(curves: Curves) -> list[Claim]:
    """Final accuracies of a method with and without doubling agree, as far as the test samples can tell."""
    claims = []
    for fast, slow in pairs_of(curves):
        differences, error = final_difference(curves[fast], curves[slow])
        band = max(NOISE, 2 * error)
        text = f"{fast} ends where {slow} does (difference of the final accuracies, points)"
        allowed = f"within {100 * band:.1f}" + (" (2 standard errors)" if band > NOISE else "")
        claims.append(Claim(text, spread(100 * differences, 1), allowed, abs(differences.mean()) <= band))
    return claims


def gain_shrinks_with_communication(curves: Curves) -> list[Claim]:
    """The time ratio rises towards 1 the longer the communication takes; above 1, doubling is slower."""
    charged = {"every round": COMMUNICATION_TIMES, "once in 10 rounds, as in the published figures": PUBLISHED_TIMES}
    return [shrinking(curves, when, times) for when, times in charged.items()]


def shrinking(curves: Curves, when: str, times: Sequence[float]) -> Claim:
    """That the gain shrinks with these communication times of a round."""
    ratios = all_ratios(curves, PAIRS[0], times)
    means = np.array([ratio.mean() for ratio in ratios])
    text = f"The gain of FedRep-SRPFL shrinks with the communication time, charged {when} (time ratios for 0, 10, 100)"
    passed = bool((np.diff(means) > 0).all() and means[-1] <= 1)
    return Claim(text, ", ".join(map(shown_ratio, ratios)), "rising, up to 1", passed)


def gain_persists(curves: Curves) -> list[Claim]:
    """The doubled variant is earlier for every communication time."""
    ratios = all_ratios(curves, PAIRS[0], COMMUNICATION_TIMES)
    text = "The gain of FedRep-SRPFL persists for all communication times (time ratios for 0, 10, 100)"
    passed = all(ratio.mean() < 1 for ratio in ratios)
    return [Claim(text, ", ".join(map(shown_ratio, ratios)), "all < 1", passed)]


def best_over_time(curves: Curves) -> list[Claim]:
    """FedRep-SRPFL is the best of all curves, or tied, in mean accuracy until the first runs end."""
    end = min(float(curve.times(0.0)[:, -1].min()) for curve in curves.values())
    grid = np.linspace(0, end, 200)
    areas = {
        name: np.array([np.interp(grid, *pair).mean() for pair in zip(curve.times(0.0), curve.means, strict=True)])
        for name, curve in curves.items()
    }
    best = max(areas, key=lambda name: areas[name].mean())
    measured = f"{spread(100 * areas['FedRep-SRPFL'], 1)}; the best is {best}, {spread(100 * areas[best], 1)}"
    text = f"FedRep-SRPFL is the best curve over time, or tied (mean accuracy in the first {end:.0f} seconds, %)"
    tied = areas["FedRep-SRPFL"].mean() >= areas[best].mean() - TIED
    return [Claim(text, measured, f"the best or within {100 * TIED:.0f}", tied)]


def above(better: str, worse: str) -> Check:
    """One curve ends above another."""

    def check(curves: Curves) -> list[Claim]:
        differences = finals(curves[better]) - finals(curves[worse])
        text = f"{better} ends above {worse} (points)"
        return [Claim(text, spread(100 * differences, 1), "> 0", differences.mean() > 0)]

    return check


def common_models_are_worst(curves: Curves) -> list[Claim]:
    """FLANP and FedAvg without fine-tuning end below all others."""
    order = sorted(curves, key=lambda name: float(finals(curves[name]).mean()))
    measured = ", ".join(f"{name} {spread(100 * finals(curves[name]), 1)}" for name in order[:3])
    passed = set(order[:2]) == {"FLANP", "FedAvg"}
    return [Claim("FLANP and FedAvg without fine-tuning end as the worst (%)", measured, "FLANP, FedAvg first", passed)]


def pairs_of(curves: Curves) -> list[tuple[str, str]]:
    """The pairs that a panel has."""
    return [pair for pair in PAIRS if set(pair) <= curves.keys()]


def together(*checks: Check) -> Check:
    """Several claims of one panel."""
    return lambda curves: [claim for check in checks for claim in check(curves)]


FULL_PICTURE = together(
    earlier,
    agree_in_the_end,
    best_over_time,
    gain_shrinks_with_communication,
    above("FedRep-SRPFL", "FLANP-FT"),
    common_models_are_worst,
)
PARTIAL = together(earlier, agree_in_the_end)
