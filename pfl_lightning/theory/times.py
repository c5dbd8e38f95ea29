"""Simulated seconds that SRPFL and FedRep are expected to take (section 5.6); computation times are exponential."""

from collections.abc import Iterable
from math import log, sqrt

from pfl_lightning.errors import PflError


def expected_order_statistic(cohort_size: int, pool_size: int, rate: float = 1.0) -> float:
    """Expected seconds until the fastest clients of a pool have computed.

    Formula: E[T_(n)] = (H_N - H_{N-n}) / rate, with the harmonic numbers H, for n of N independent T_i ~ Exp(rate).

    Args:
        cohort_size: How many of the fastest clients, n.
        pool_size: Clients in the pool, N.
        rate: Rate of the exponential, 1 / mean. (The papers' experiments call the mean lambda, their theory the rate.)

    Raises:
        PflError: If the pool has not so many clients.
    """
    if not 0 <= cohort_size <= pool_size:
        raise PflError(f"cohort_size: {cohort_size} is not possible; allowed: 0 to {pool_size}, the pool")
    return sum(1 / left for left in range(pool_size - cohort_size + 1, pool_size + 1)) / rate


def stage_sizes(n0: int, pool_size: int) -> list[int]:
    """Participants in each stage: n0, twice as many and so on, and in the last stage the pool (section 3).

    Args:
        n0: Participants in the first stage.
        pool_size: Clients in the pool, N.
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
    """
    return sum(expected_order_statistic(size, pool_size, rate) + communication_time for size in cohort_sizes)


def equal_stages_ratio(n0: int, pool_size: int, communication_time: float = 0.0) -> float:
    """Expected time of SRPFL with stages of equal length, over that of FedRep in as many rounds (section 5.7.4).

    Args:
        n0: Participants in the first stage.
        pool_size: Clients in the pool, N, with T_i ~ Exp(mean 1).
        communication_time: Simulated seconds that the communication of a round takes, C.

    Returns:
        A number in (0, 1]; about 1 / log N without communication.
    """
    sizes = stage_sizes(n0, pool_size)
    everyone = [pool_size] * len(sizes)
    return expected_time(sizes, pool_size, communication_time) / expected_time(everyone, pool_size, communication_time)


def speedup_bound(pool_size: int, target: float, communication_time: float = 0.0) -> float:
    """The theorem's bound on the expected time of SRPFL over that of FedRep, with explicit constants (Theorem 4.9).

    Formula: (6 (c + 1) + 4 L) / (log N + 2 L), with L = log(1 / (target - 1)).

    Args:
        pool_size: Clients in the pool, N.
        target: Distance to reach, as a multiple of the last stage's floor; sqrt(2) is the floor of the stage before.
        communication_time: Communication of a round as a multiple of the mean computation time, c.

    Raises:
        PflError: If the target needs no last stage, or cannot be reached. (S11: the paper's text shows 2 for sqrt(2).)
    """
    if not 1 < target < sqrt(2):
        raise PflError(f"target: {target} is not possible; allowed: more than 1, less than sqrt(2)")
    digits = log(1 / (target - 1))
    return (6 * (communication_time + 1) + 4 * digits) / (log(pool_size) + 2 * digits)
