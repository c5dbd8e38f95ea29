"""SRPFL's claims about one panel of its figures; one with a seed that never reaches an accuracy fails."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from reproduction.claims import Claim, paired, spread, within
from reproduction.srpfl.measures import (
    PAIRS,
    REACHED,
    Check,
    Curves,
    finals,
    shown_ratio,
    time_ratios,
)

COMMUNICATION_TIMES = (0.0, 10.0, 100.0)
# of a round: the published Figures 3 and 5 charge these 28 times in 100 rounds, Figure 8 17 times in 150
FIGURE_3_TIMES, FIGURE_8_TIMES = ((0.0, 10 * share, 100 * share) for share in (28 / 100, 17 / 150))
NOISE = 0.03  # accuracies that differ by less agree
TIED = 0.01  # mean accuracies over time that differ by less are tied


def earlier(curves: Curves) -> list[Claim]:
    """The doubled variants reach the accuracy of their bases earlier."""
    claims = []
    for fast, slow in pairs_of(curves):
        ratios = time_ratios(curves, (fast, slow))
        text = f"{fast} reaches {REACHED:.0%} of {slow}'s final accuracy earlier (time ratio)"
        claims.append(paired(text, spread(ratios), "< 1", 1 - ratios))
    return claims


def agree_in_the_end(curves: Curves) -> list[Claim]:
    """Final accuracies of a method with and without doubling agree."""
    claims = []
    for fast, slow in pairs_of(curves):
        differences = finals(curves[fast]) - finals(curves[slow])
        text = f"{fast} ends where {slow} does (difference of the final accuracies, points)"
        band = within(differences, NOISE)
        claims.append(paired(text, spread(100 * differences, 1), f"within {100 * NOISE:.1f}", *band))
    return claims


def gain_shrinks_with_communication(curves: Curves) -> list[Claim]:
    """The time ratio rises towards 1 the longer the communication takes; above 1, doubling is slower."""
    charged = {"every round": COMMUNICATION_TIMES, "28 times in 100, as in the published figures": FIGURE_3_TIMES}
    return [shrinking(curves, when, times) for when, times in charged.items()]


def shrinking(curves: Curves, when: str, times: Sequence[float]) -> Claim:
    """That the gain shrinks with these communication times of a round."""
    ratios = [time_ratios(curves, PAIRS[0], time) for time in times]
    text = f"The gain of FedRep-SRPFL shrinks with the communication time, charged {when} (time ratios for 0, 10, 100)"
    rises = [after - before for before, after in pairwise(ratios)]
    return paired(text, ", ".join(map(shown_ratio, ratios)), "rising, below 1", *rises, 1 - ratios[-1])


def gain_persists(curves: Curves) -> list[Claim]:
    """The doubled variant is earlier for every communication time, charged as in Figure 8."""
    ratios = [time_ratios(curves, PAIRS[0], time) for time in FIGURE_8_TIMES]
    text = "The gain of FedRep-SRPFL persists for all communication times, charged 17 times in 150 rounds, as in the "
    text += "published figure (time ratios for 0, 10, 100)"
    return [paired(text, ", ".join(map(shown_ratio, ratios)), "all < 1", *(1 - ratio for ratio in ratios))]


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
    behind = [area - areas["FedRep-SRPFL"] for name, area in areas.items() if name != "FedRep-SRPFL"]
    return [paired(text, measured, f"the best or within {100 * TIED:.0f}", *(TIED - each for each in behind))]


def above(better: str, worse: str) -> Check:
    """One curve ends above another."""

    def check(curves: Curves) -> list[Claim]:
        differences = finals(curves[better]) - finals(curves[worse])
        text = f"{better} ends above {worse} (points)"
        return [paired(text, spread(100 * differences, 1), "> 0", differences)]

    return check


def common_models_are_worst(curves: Curves) -> list[Claim]:
    """FLANP and FedAvg without fine-tuning end below all others."""
    order = sorted(curves, key=lambda name: float(finals(curves[name]).mean()))
    measured = ", ".join(f"{name} {spread(100 * finals(curves[name]), 1)}" for name in order[:3])
    common = ("FLANP", "FedAvg")
    above = [finals(curves[own]) - finals(curves[one]) for own in curves if own not in common for one in common]
    text = "FLANP and FedAvg without fine-tuning end as the worst (%)"
    return [paired(text, measured, "FLANP, FedAvg first", *above)]


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
