"""Simulated seconds that SRPFL and FedRep are expected to take, and the stages that take least; times are exponential.

Paper: Tziotis et al., "Straggler-Resilient Personalized Federated Learning", TMLR 2023, arXiv:2206.02078. Derivations:
docs/evidence/derivations.md, Expected times, and Linear case: the theorem as we reconstructed it.
"""

from collections.abc import Iterable
from itertools import pairwise
from math import ceil, log, sqrt


def expected_order_statistic(cohort_size: int, pool_size: int, rate: float = 1.0) -> float:
    """Expected seconds until the fastest clients of a pool have computed.

    Formula: E[T_(n)] = (H_N - H_{N-n}) / rate, with the harmonic numbers H, for n of N independent T_i ~ Exp(rate).

    Args:
        cohort_size: How many of the fastest clients, n.
        pool_size: Clients in the pool, N.
        rate: Rate of the exponential, 1 / mean. (SRPFL's experiments call the mean lambda, its theory the rate.)

    Examples:
        >>> expected_order_statistic(2, 2)  # 1/2 for the first, and 1 more for the second
        1.5
    """
    return sum(1 / left for left in range(pool_size - cohort_size + 1, pool_size + 1)) / rate


def stage_sizes(n0: int, pool_size: int) -> list[int]:
    """Participants in each stage: n0, twice as many and so on, and in the last stage the pool (SRPFL, Algorithm 1).

    Args:
        n0: Participants in the first stage.
        pool_size: Clients in the pool, N.

    Examples:
        >>> stage_sizes(10, 100)
        [10, 20, 40, 80, 100]
    """
    sizes = []
    while n0 < pool_size:
        sizes.append(n0)
        n0 *= 2
    return [*sizes, pool_size]


def expected_time(
    cohort_sizes: Iterable[int], pool_size: int, communication_time: float = 0.0, rate: float = 1.0
) -> float:
    """Expected seconds of some rounds.

    Formula: sum_t (E[T_(n_t)] + C).

    Args:
        cohort_sizes: Participants of each round, n_t.
        pool_size: Clients in the pool, N.
        communication_time: Simulated seconds that the communication of a round takes, C.
        rate: Rate of the computation times.

    Examples:
        >>> expected_time([1, 1, 2], 2)  # 1/2, 1/2 and 3/2
        2.5
    """
    return sum(expected_order_statistic(size, pool_size, rate) + communication_time for size in cohort_sizes)


def equal_stages_ratio(n0: int, pool_size: int, communication_time: float = 0.0) -> float:
    """Expected time of SRPFL with stages of equal length, over that of FedRep in as many rounds.

    Args:
        n0: Participants in the first stage.
        pool_size: Clients in the pool, N, with T_i ~ Exp(mean 1).
        communication_time: Simulated seconds that the communication of a round takes, C.

    Returns:
        A number in (0, 1]; about 1 / log N without communication.

    Examples:
        >>> round(equal_stages_ratio(8, 64), 4)
        0.3081
    """
    sizes = stage_sizes(n0, pool_size)
    everyone = [pool_size] * len(sizes)
    return expected_time(sizes, pool_size, communication_time) / expected_time(everyone, pool_size, communication_time)


def switching_distances(n0: int, pool_size: int, communication_time: float = 0.0) -> list[float]:
    """Distances to the true representation below which the next stage makes more progress per second.

    Formula: X_{r+1} = (f_r (E_{r+1} + C) - f_{r+1} (E_r + C)) / (E_{r+1} - E_r), with f_r = 1 / sqrt(n_r).

    Args:
        n0: Participants in the first stage.
        pool_size: Clients in the pool, N, with T_i ~ Exp(mean 1).
        communication_time: Simulated seconds that the communication of a round takes, C.

    Returns:
        One for each stage but the last, as multiples of the noise floor of a single participant.

    Examples:
        >>> switching_distances(1, 2)  # rounds of 1/2 and 3/2 s, floors 1 and 1 / sqrt(2)
        [1.1464466094067263]
    """
    sizes = stage_sizes(n0, pool_size)
    stages = [(1 / sqrt(size), expected_time([size], pool_size, communication_time)) for size in sizes]
    return [
        (floor * later - next_floor * seconds) / (later - seconds)
        for (floor, seconds), (next_floor, later) in pairwise(stages)
    ]


def stage_lengths(start: float, factor: float, n0: int, pool_size: int, communication_time: float = 0.0) -> list[int]:
    """Rounds of each stage but the last, from one switching distance to the next.

    Formula: t_r = ceil(log((X_r - f_r) / (X_{r+1} - f_r)) / log(1 / factor)), SRPFL's Lemma B.1; for r > 0 neither the
    start nor the communication time matters where the participants double.

    Args:
        start: Distance before the first round, as a multiple of the noise floor of a single participant.
        factor: By what a round shrinks the distance above its stage's floor, sqrt(1 - a).
        n0: Participants in the first stage.
        pool_size: Clients in the pool, N, with T_i ~ Exp(mean 1).
        communication_time: Simulated seconds that the communication of a round takes, C.

    Returns:
        0 for a stage that is too slow from the beginning.

    Examples:
        >>> stage_lengths(8.0, 0.6, 8, 64)
        [9, 3, 6]
    """
    lengths = []
    distance = start
    for size, target in zip(
        stage_sizes(n0, pool_size), switching_distances(n0, pool_size, communication_time), strict=False
    ):
        floor = 1 / sqrt(size)
        rounds = log((distance - floor) / (target - floor)) / log(1 / factor) if distance > target else 0
        lengths.append(ceil(rounds))
        distance = min(distance, target)
    return lengths
