"""SRPFL's theory of linear representations, checked on simulations; see docs/evidence/derivations.md."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from theory.linear import contraction

from pfl_lightning.data import LinearRepresentation
from reproduction.claims import Claim, Floats, fact, listed, ours, paired, spread, within
from reproduction.runs import Place
from reproduction.srpfl.linear import (
    MOST_ROUNDS,
    PARTICIPANTS,
    ROUNDS,
    SAFE_LAST,
    SAFE_RATE,
    SEEDS,
    Distances,
    Race,
    contractions,
    floor_of,
    problem,
    races,
    safe_contractions,
    time_ratios,
)
from reproduction.srpfl.linear_figure import draw

# what is expected, by participants n of 64 clients, by noise, and by the size N of the pool
FLOORS = {0.1: (0.0156, 0.0111, 0.0077, 0.0056), 1.0: (0.161, 0.109, 0.078, 0.056)}
RATIOS = {16: 0.28, 32: 0.16, 64: 0.14, 128: 0.12, 256: 0.12}
FAST = 0.75  # the slowest contraction that is called fast
FLOOR_NOISE = 0.1  # of the floors at the safe rate
NEAR, NEAR_RATIO = 0.1, 0.25  # largest relative differences from what is expected: of floors, and of time ratios


def linear_claims(place: Place) -> list[Claim]:
    """Run and draw the experiments of the linear case, which takes about ten minutes; seeds are its own.

    The paper has a theory alone, so these are checks of our own: what is expected is a simulation's.
    """
    distances, runs = contractions(noise=0.0), races()
    floors = {noise: floor_of(contractions(noise)) for noise in FLOORS}
    safe, safe_floors = safe_contractions(0.0), floor_of(safe_contractions(FLOOR_NOISE), SAFE_LAST)
    ratios = {pool: time_ratios(pairs, pool) for pool, pairs in runs.items()}
    draw(distances, floors, ratios, place.folder / "linear.png")
    return ours(
        [
            *contraction_claims(distances),
            *floor_claims(floors),
            *safe_claims(safe, safe_floors, floors[FLOOR_NOISE]),
            *speedup_claims(runs),
        ]
    )


def contraction_claims(runs: Distances) -> list[Claim]:
    """Without noise, the distance shrinks geometrically, equally fast for all n."""
    factors = [factors_of(distances) for distances in runs.values()]
    last = max(distances[:, -1].max() for distances in runs.values())
    return [
        paired(
            "contraction per round, n = 8 to 64",
            listed(factors),
            f"< {FAST}",
            *(FAST - each for each in factors),
        ),
        fact(f"largest distance after {ROUNDS} rounds", f"{last:.0e}", "< 1e-8", bool(last < 1e-8)),
    ]


def factors_of(distances: Floats) -> Floats:
    """By what a round shrinks the distance, until it is that of rounding, ``[seeds]``."""
    ends = [next((t for t, distance in enumerate(run) if distance < 1e-12), len(run) - 1) for run in distances]
    return np.array([(run[end] / run[0]) ** (1 / end) for run, end in zip(distances, ends, strict=True)])


def safe_claims(runs: Distances, floors: Mapping[int, Floats], fast: Mapping[int, Floats]) -> list[Claim]:
    """What the theorem says holds at a rate that it allows.

    Args:
        runs: Without noise.
        floors: With noise, by participants, ``[seeds]``.
        fast: Those at the large rate.
    """
    factors = [factors_of(distances) for distances in runs.values()]
    bounds = np.array([theorem_factor(problem(64, 0.0, seed), runs[64][i, 0]) for i, seed in enumerate(SEEDS)])
    slopes = log_slopes(floors)
    rate = "at the rate 1/16, inside the theorem's range"
    return [
        paired(
            f"contraction per round {rate}, n = 8 and 64",
            listed(factors, 3),
            f"< {spread(bounds, 3)}, the theorem's sqrt(1 - a) with all 64",
            *(bounds - each for each in factors),
        ),
        paired(
            f"floor with noise {FLOOR_NOISE} {rate}, n = 8 and 64; log-log slope",
            f"{listed(floors.values(), 4)}; {spread(slopes)}",
            "below those at the rate 0.5; -0.5 ± 0.1",
            *(fast[n] - floors[n] for n in floors),
            *within(slopes + 0.5, 0.1),
        ),
    ]


def theorem_factor(data: LinearRepresentation, distance: float) -> float:
    """By what eq. (11) shrinks the distance in a round of all clients at the safe rate, before its floor is added."""
    diversity = np.linalg.svd(data.heads / np.sqrt(len(data.heads)), compute_uv=False).min()
    return float(np.sqrt(1 - contraction(SAFE_RATE, distance, diversity)))


def log_slopes(floors: Mapping[int, Floats]) -> Floats:
    """The power of the participants with which the floors of each seed grow, ``[seeds]``."""
    slopes: Floats = np.polyfit(np.log(list(floors)), np.log(list(floors.values())), 1)[0]
    return slopes


def near(values: Iterable[Floats], expected: Iterable[float], tolerance: float) -> list[Floats]:
    """Differences that are above 0 if values are what is expected, but for a relative difference."""
    return [
        side for found, wanted in zip(values, expected, strict=True) for side in within(found / wanted - 1, tolerance)
    ]


def floor_claims(floors: Mapping[float, Mapping[int, Floats]]) -> list[Claim]:
    """With noise, the distance stays at a floor proportional to noise / sqrt(n)."""
    claims = []
    for noise, by_size in floors.items():
        slopes = log_slopes(by_size)
        claims.append(
            paired(
                f"floor with noise {noise}, n = 8 to 64; log-log slope",
                f"{listed(by_size.values(), 4)}; {spread(slopes)}",
                f"{listed(FLOORS[noise], 4)}, ± {NEAR:.0%}; -0.5 ± 0.1",
                *near(by_size.values(), FLOORS[noise], NEAR),
                *within(slopes + 0.5, 0.1),
            )
        )
    low, high = FLOORS
    ratios = [floors[high][n] / floors[low][n] * low / high for n in PARTICIPANTS]
    proportional = near(ratios, [1.0] * len(ratios), 0.15)
    return [*claims, paired("floor / noise, 1 against 0.1", listed(ratios), "1 ± 0.15", *proportional)]


def speedup_claims(runs: Mapping[int, Sequence[Race]]) -> list[Claim]:
    """SRPFL reaches FedRep's distance sooner, the more so the larger the pool, if talking is cheap."""
    ratios = {pool: time_ratios(pairs, pool) for pool, pairs in runs.items()}
    longest = max(len(run.cohort_sizes) for pairs in runs.values() for pair in pairs for run in pair)
    costly = [time_ratios(pairs, pool, 100.0) for pool, pairs in runs.items()]
    return [
        paired(
            "seconds of SRPFL / FedRep, N = 16 to 256",
            listed(ratios.values()),
            f"{listed(RATIOS.values())}, ± {NEAR_RATIO:.0%}; < 0.5 from 32 on, 256 below 16",
            *near(ratios.values(), RATIOS.values(), NEAR_RATIO),
            *(0.5 - each for pool, each in ratios.items() if pool >= 32),
            ratios[16] - ratios[256],
        ),
        fact("most rounds of a run", f"{longest}", f"< {MOST_ROUNDS}", longest < MOST_ROUNDS),
        paired(
            "with C = 100 the gain is lost: seconds of SRPFL / FedRep",
            listed(costly),
            "> 0.9",
            *(each - 0.9 for each in costly),
        ),
    ]
