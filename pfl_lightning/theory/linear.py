"""Distance of two representations, and what SRPFL proves of it.

In stage r, with ``2^r n0`` participants, a round takes the distance to at most
``sqrt(1 - a) distance + a / sqrt(2^r (1 - a))``, eq. (11). For the first stages that says nothing: the fixed point is
above 2 in stage 0, whatever a is, and a distance is at most 1. The bound tells how long stages should be, not how far a
run gets.

Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078. Derivations,
and what we reconstructed, are in docs/derivations.md, Linear case.
"""

from collections.abc import Sequence
from math import ceil, log, sqrt

import torch
from torch import Tensor

from pfl_lightning.errors import PflError


def orthonormal(matrix: Tensor) -> Tensor:
    """The Q of the thin QR decomposition with a positive diagonal of R, which makes it unique.

    Args:
        matrix: Basis of a space in its columns, ``[dimension, rank]``.

    Returns:
        An orthonormal basis of the same space, same shape.

    Examples:
        >>> orthonormal(torch.tensor([[0.0], [2.0]])).abs()
        tensor([[0.],
                [1.]])
    """
    q, r = torch.linalg.qr(matrix)
    basis: Tensor = q * torch.where(r.diagonal() < 0, -1, 1).to(q.dtype)
    return basis


def principal_angle_distance(one: Tensor, other: Tensor) -> Tensor:
    """Sine of the largest principal angle between two spaces.

    Formula: || (I - Q1 Q1^T) Q2 ||_2 of orthonormal bases Q1 and Q2; any bases may be given.

    Args:
        one: Basis of the first space in its columns, ``[dimension, rank]``.
        other: Basis of the second one, same shape.

    Returns:
        A number in [0, 1], to the precision of the inputs also near 0; symmetric, ``[]``.

    Examples:
        >>> float(principal_angle_distance(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])))
        1.0
    """
    one, other = orthonormal(one), orthonormal(other)
    sine: Tensor = torch.linalg.matrix_norm(other - one @ (one.T @ other), ord=2).clamp(max=1)
    return sine


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


def next_distance(distance: float, stage: int, contraction: float) -> float:
    """The bound on the distance after a round in a stage, eq. (11).

    Args:
        distance: Distance before the round.
        stage: Number of the stage, r; 0 is the first.
        contraction: The theorem's a.
    """
    return sqrt(1 - contraction) * distance + contraction / sqrt(2**stage * (1 - contraction))


def stage_floor(stage: int, contraction: float) -> float:
    """The distance at which a stage makes no progress any more, the fixed point f_r of eq. (11).

    Formula: f_r = a / (sqrt(2^r (1 - a)) (1 - sqrt(1 - a))).

    Args:
        stage: Number of the stage, r; 0 is the first.
        contraction: The theorem's a.
    """
    factor = sqrt(1 - contraction)
    return contraction / (sqrt(2**stage) * factor * (1 - factor))


def switching_distance(
    stage: int, contraction: float, times: Sequence[float], communication_time: float = 0.0
) -> float:
    """The distance below which the next stage makes more progress per second, X_{r+1} = f_r (1 + g_r).

    Formula: g_r = (E_r + C) (1 - 1 / sqrt(2)) / (E_{r+1} - E_r).

    Args:
        stage: Number of the stage that ends, r.
        contraction: The theorem's a.
        times: Expected computation time of a round in each stage, E_0, E_1, ..., in simulated seconds.
        communication_time: Simulated seconds that the communication of a round takes, C.

    Raises:
        PflError: If no stage follows.
    """
    return stage_floor(stage, contraction) * (1 + _slack(stage, times, communication_time))


def stage_length(stage: int, contraction: float, times: Sequence[float], communication_time: float = 0.0) -> int:
    """Rounds in a stage between the first and the last, from one switching distance to the next by eq. (11).

    Formula: t_r = ceil(2 log((sqrt(2) (1 + g_{r-1}) - 1) / g_r) / log(1 / (1 - a))).

    Args:
        stage: Number of the stage, r.
        contraction: The theorem's a.
        times: Expected computation time of a round in each stage, E_0, E_1, ..., in simulated seconds.
        communication_time: Simulated seconds that the communication of a round takes, C.

    Raises:
        PflError: If the stage is the first, the last or none.
    """
    before, after = (_slack(each, times, communication_time) for each in (stage - 1, stage))
    return ceil(2 * log((sqrt(2) * (1 + before) - 1) / after) / -log(1 - contraction))


def stage_length_bound(stage: int, contraction: float, times: Sequence[float]) -> float:
    """The paper's upper bound on ``stage_length``, whatever the communication takes.

    Formula: t_r <= 2 log(2 (E_{r+1} - E_r) / (E_r - E_{r-1})) / log(1 / (1 - a)).

    Args:
        stage: Number of the stage, r.
        contraction: The theorem's a.
        times: Expected computation time of a round in each stage, E_0, E_1, ..., in simulated seconds.

    Raises:
        PflError: If the stage is the first, the last or none.
    """
    before, after = (_increase(each, times) for each in (stage - 1, stage))
    return 2 * log(2 * after / before) / -log(1 - contraction)


def _slack(stage: int, times: Sequence[float], communication_time: float) -> float:
    """g_r: by which share the switching distance exceeds the floor of the stage that ends."""
    return (times[stage] + communication_time) * (1 - 1 / sqrt(2)) / _increase(stage, times)


def _increase(stage: int, times: Sequence[float]) -> float:
    """How many seconds longer a round of the next stage takes."""
    if not 0 <= stage < len(times) - 1:
        raise PflError(f"stage: {stage} has no successor; allowed: 0 to {len(times) - 2}")
    return times[stage + 1] - times[stage]
