"""What SRPFL's claims measure on curves: one value for each seed."""

from collections.abc import Callable

import numpy as np

from pfl_lightning.report import Curve
from reproduction.claims import Claim, Floats, spread

Curves = dict[str, Curve]  # of one panel, by their names in the paper
Check = Callable[[Curves], list[Claim]]

PAIRS = (("FedRep-SRPFL", "FedRep"), ("LG-SRPFL", "LG-FedAvg"))
REACHED = 0.95  # of what the method without doubling reaches in the end


def finals(curve: Curve) -> Floats:
    """Mean accuracy at the last evaluation, ``[seeds]``."""
    last: Floats = curve.means[:, -1]
    return last


def targets(slow: Curve) -> Floats:
    """The accuracy that both methods of a pair are to reach, ``[seeds]``."""
    return REACHED * finals(slow)


def time_ratios(curves: Curves, pair: tuple[str, str], communication_time: float = 0.0, bound: bool = False) -> Floats:
    """Simulated seconds in which a method with doubling reaches nearly the final accuracy of that without.

    Args:
        curves: The curves of a panel.
        pair: The method with doubling, and without.
        communication_time: Seconds of a round's communication.
        bound: Whether a method with doubling that never gets there counts with the seconds of the whole run, which is
            less than it would need.

    Returns:
        The seconds over those of the method without doubling, nan for never, 1 if both are there before the first
        round, ``[seeds]``.
    """
    goals = targets(curves[pair[1]])[:, None]
    fast, slow = (curves[name].seconds_to(goals, communication_time) for name in pair)
    if bound:
        fast = at_least(fast, curves[pair[0]].times(communication_time))
    ratios: Floats = np.divide(fast, slow, out=np.ones_like(slow), where=slow != 0)
    return ratios


def at_least(seconds: Floats, times: Floats) -> Floats:
    """Seconds that a run needs or, if it never gets there, all that it had, ``[seeds]``.

    Args:
        seconds: Nan for never, ``[seeds]``.
        times: Seconds at each evaluation, ``[seeds, evaluations]``.
    """
    return np.where(np.isnan(seconds), times[:, -1], seconds)


def shown_ratio(ratios: Floats) -> str:
    """A mean ratio with its spread, and whether doubling then costs time."""
    return spread(ratios) + (" (lost)" if ratios.mean() >= 1 else "")
