"""SRPFL's claims about its figures, checked on the curves of runs."""

from collections.abc import Callable

import numpy as np

from pfl_lightning.report import Curve
from reproduction.claims import Claim

Curves = dict[str, Curve]  # of one panel, by their names in the paper
Check = Callable[[Curves], list[Claim]]

PAIRS = (("FedRep-SRPFL", "FedRep"), ("LG-SRPFL", "LG-FedAvg"))
COMMUNICATION_TIMES = (0.0, 10.0, 100.0)
REACHED = 0.95  # of what the method without doubling reaches in the end
NOISE = 0.03  # accuracies that differ by less agree


def seconds_to_agree(fast: Curve, slow: Curve, communication_time: float) -> float:
    """Ratio of the simulated seconds in which two curves reach nearly the final accuracy of the second; nan for never.

    Args:
        fast: The curve with doubling.
        slow: The same method without.
        communication_time: Seconds of a round's communication.
    """
    target = REACHED * slow.means[:, -1].mean()
    return float(
        fast.seconds_to(target, communication_time).mean() / slow.seconds_to(target, communication_time).mean()
    )


def earlier(curves: Curves) -> list[Claim]:
    """The doubled variants reach the accuracy of their bases earlier."""
    claims = []
    for fast, slow in PAIRS:
        ratio = seconds_to_agree(curves[fast], curves[slow], 0.0)
        text = f"{fast} reaches {REACHED:.0%} of {slow}'s final accuracy earlier (time ratio)"
        claims.append(Claim(text, f"{ratio:.2f}", "< 1", ratio < 1))
    return claims


def agree_in_the_end(curves: Curves) -> list[Claim]:
    """Final accuracies of a method with and without doubling agree within noise."""
    claims = []
    for fast, slow in PAIRS:
        difference = curves[fast].means[:, -1].mean() - curves[slow].means[:, -1].mean()
        text = f"{fast} ends where {slow} does (difference of the final accuracies, points)"
        claims.append(Claim(text, f"{100 * difference:+.1f}", f"within {100 * NOISE:.0f}", abs(difference) <= NOISE))
    return claims


def gain_shrinks_with_communication(curves: Curves) -> list[Claim]:
    """The time ratio comes nearer to 1 the longer the communication takes."""
    ratios = [seconds_to_agree(curves["FedRep-SRPFL"], curves["FedRep"], time) for time in COMMUNICATION_TIMES]
    text = "The gain of FedRep-SRPFL shrinks with the communication time (time ratios for 0, 10, 100)"
    rising = bool(np.all(np.diff(ratios) > 0))
    return [Claim(text, ", ".join(f"{ratio:.2f}" for ratio in ratios), "rising", rising)]


def gain_persists(curves: Curves) -> list[Claim]:
    """The doubled variant is earlier for every communication time."""
    ratios = [seconds_to_agree(curves["FedRep-SRPFL"], curves["FedRep"], time) for time in COMMUNICATION_TIMES]
    text = "The gain of FedRep-SRPFL persists for all communication times (time ratios for 0, 10, 100)"
    return [Claim(text, ", ".join(f"{ratio:.2f}" for ratio in ratios), "all < 1", max(ratios) < 1)]


def best_over_time(curves: Curves) -> list[Claim]:
    """FedRep-SRPFL is the best of all curves, or tied, in mean accuracy until the doubled runs end."""
    end = min(float(curve.times(0.0).max()) for curve in curves.values())
    grid = np.linspace(0, end, 200)
    areas = {
        name: float(np.mean([np.interp(grid, *pair) for pair in zip(curve.times(0.0), curve.means, strict=True)]))
        for name, curve in curves.items()
    }
    best = max(areas, key=lambda name: areas[name])
    measured = f"{100 * areas['FedRep-SRPFL']:.1f}; the best is {best}, {100 * areas[best]:.1f}"
    text = f"FedRep-SRPFL is the best curve over time, or tied (mean accuracy in the first {end:.0f} seconds, %)"
    tied = areas["FedRep-SRPFL"] >= areas[best] - 0.01
    return [Claim(text, measured, "the best or within 1", tied)]


def above_flanp_ft(curves: Curves) -> list[Claim]:
    """FedRep-SRPFL ends above FLANP-FT."""
    difference = curves["FedRep-SRPFL"].means[:, -1].mean() - curves["FLANP-FT"].means[:, -1].mean()
    text = "FedRep-SRPFL ends above FLANP-FT (points)"
    return [Claim(text, f"{100 * difference:+.1f}", "> 0", difference > 0)]


def common_models_are_worst(curves: Curves) -> list[Claim]:
    """FLANP and FedAvg without refitting end below all others."""
    finals = {name: float(curve.means[:, -1].mean()) for name, curve in curves.items()}
    order = sorted(finals, key=lambda name: finals[name])
    measured = ", ".join(f"{name} {100 * finals[name]:.1f}" for name in order[:3])
    passed = set(order[:2]) == {"FLANP", "FedAvg"}
    return [Claim("FLANP and FedAvg without refitting end as the worst (%)", measured, "FLANP, FedAvg first", passed)]


def together(*checks: Check) -> Check:
    """Several claims of one panel."""
    return lambda curves: [claim for check in checks for claim in check(curves)]


def slower_with_stragglers(panels: dict[str, Curves]) -> list[Claim]:
    """More stragglers cost more time, with doubling less than without."""
    few, many = panels.values()
    target = REACHED * few["FedRep"].means[:, -1].mean()
    seconds = {
        name: [float(curves[name].seconds_to(target, 0.0).mean()) for curves in (few, many)]
        for name in ("FedRep", "FedRep-SRPFL")
    }
    claims = []
    for name, (first, second) in seconds.items():
        text = f"{name} needs longer with 30 % stragglers than with 10 % (seconds)"
        claims.append(Claim(text, f"{first:.1f}, {second:.1f}", "rising", second > first))
    lost = {name: second - first for name, (first, second) in seconds.items()}
    measured = ", ".join(f"{name} {value:.1f}" for name, value in lost.items())
    text = "Doubling softens what more stragglers cost (seconds lost)"
    return [*claims, Claim(text, measured, "less with doubling", lost["FedRep-SRPFL"] < lost["FedRep"])]


FULL_PICTURE = together(
    earlier, agree_in_the_end, best_over_time, gain_shrinks_with_communication, above_flanp_ft, common_models_are_worst
)
PARTIAL = together(earlier, agree_in_the_end)
