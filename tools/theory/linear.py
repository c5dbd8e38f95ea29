"""What SRPFL proves of the distance of two representations, ``metrics.principal_angle_distance``.

In stage r, with ``2^r n0`` participants, a round takes the distance to at most
``sqrt(1 - a) distance + a / sqrt(2^r (1 - a))``, eq. (11). For the first stages that says nothing: the fixed point is
above 2 in stage 0, whatever a is, and a distance is at most 1. The bound tells how long stages should be, not how far a
run gets.

Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078. Derivations,
and what we reconstructed, are in docs/evidence/derivations.md, Linear case.
"""

from math import sqrt


def contraction(lr: float, distance: float, diversity: float) -> float:
    """The a of eq. (11), which shrinks the distance by ``sqrt(1 - a)`` in a round.

    Formula: a = lr (1 - dist(B_0, B*)^2) sigma_min^2 / 2.

    Args:
        lr: Step size on the representation, eta.
        distance: Distance of the first representation.
        diversity: Smallest singular value of the participants' heads / sqrt(participants), over all cohorts.

    Returns:
        A number; at most 1/4 in the theorem.

    Examples:
        >>> contraction(lr=0.5, distance=0.0, diversity=1.0)
        0.25
    """
    return lr * (1 - distance**2) * diversity**2 / 2


def next_distance(distance: float, stage: int, a: float) -> float:
    """The bound on the distance after a round, eq. (11).

    Args:
        distance: Distance before the round.
        stage: Stage of doubling, r, from 0.
        a: The contraction.

    Examples:
        >>> next_distance(1.0, stage=2, a=0.75)
        1.25
    """
    return sqrt(1 - a) * distance + a / sqrt(2**stage * (1 - a))


def stage_floor(stage: int, a: float) -> float:
    """The fixed point f_r of eq. (11), at which a stage makes no progress any more.

    Args:
        stage: Stage of doubling, r, from 0.
        a: The contraction.

    Examples:
        >>> stage_floor(stage=2, a=0.75)
        1.5
    """
    return a / (sqrt(2**stage * (1 - a)) * (1 - sqrt(1 - a)))


def switching_distance(stage: int, a: float, seconds: float, next_seconds: float) -> float:
    """The distance below which the next stage makes more progress per second.

    Formula: X_{r+1} = f_r (1 + g_r), with g_r = (1 - 1 / sqrt(2)) seconds / (next_seconds - seconds).

    Args:
        stage: Stage of doubling, r, from 0.
        a: The contraction.
        seconds: Expected seconds of one of its rounds, with the communication.
        next_seconds: Those of the next stage, which are more.
    """
    return stage_floor(stage, a) * (1 + (1 - 1 / sqrt(2)) * seconds / (next_seconds - seconds))
