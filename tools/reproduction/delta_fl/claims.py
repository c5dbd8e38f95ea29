"""Delta-FL's claims about its tables and figures, checked on the curves of runs."""

from collections.abc import Callable, Mapping

import numpy as np

from pfl_lightning.report import Curve
from pfl_lightning.report.tails import TEST, TRAIN
from reproduction.claims import Claim, Floats, fact, listed, paired, spread, within

Curves = Mapping[str, Curve]  # of one pair, by the names of their folders
Check = Callable[[Curves], list[Claim]]

ON_PAR = 1.0  # points of the mean error that may be lost
NO_LARGE_EFFECT = 2.0  # points of the 90th percentile
NEAR = 0.15  # share of the pool by which the number of devices kept may miss the conformity, since they weigh unequally
STEADY = 0.1  # share of the pool by which that number may change from the first half of the rounds to the second
SAME_TAILS = 0.9  # share of the rounds in which as many devices are kept

FEDAVG, CONFORMITY = "fedavg", "delta-fl,conformity="
HALF = f"{CONFORMITY}0.5"
SUMS = f"{HALF},quantile=sums"


def errors(curve: Curve, statistic: str) -> Floats:
    """A statistic of the test devices' final errors in %, such as ``p90``, ``[seeds]``."""
    return 100 * np.array(list(map(TEST[statistic], curve.final_errors)))


def by_conformity(values: Mapping[str, Floats]) -> str:
    """Numbers of FedAvg and of each conformity, as means over the seeds."""
    return "; ".join(f"{name.removeprefix(CONFORMITY)}: {spread(each)}" for name, each in values.items())


def served_better(curves: Curves) -> list[Claim]:
    """Some conformity below 1 has a smaller 90th percentile of the error than FedAvg, and its mean is on par."""
    tails = {name: errors(curve, "p90") for name, curve in curves.items()}
    means = {name: errors(curve, "mean") for name, curve in curves.items()}
    best = best_conformity(tails)
    return [
        paired(
            "90th percentile of the test error, by conformity (%)",
            by_conformity(tails),
            f"one below {FEDAVG}",
            tails[FEDAVG] - tails[best],
        ),
        paired(
            f"mean test error, on par with {best.removeprefix(CONFORMITY)} (%)",
            by_conformity(means),
            f"less than {ON_PAR} above {FEDAVG}",
            ON_PAR - (means[best] - means[FEDAVG]),
        ),
    ]


def trained_better(curves: Curves) -> list[Claim]:
    """Some conformity below 1 has a smaller 90th percentile of the training loss, weighted by samples, than FedAvg."""
    tails = {name: np.array(list(map(TRAIN["p90"], curve.final("train")))) for name, curve in curves.items()}
    difference = tails[FEDAVG] - tails[best_conformity(tails)]
    text = "90th percentile of the training loss, weighted by samples, by conformity"
    return [paired(text, by_conformity(tails), f"one below {FEDAVG}", difference)]


def served_and_trained_better(curves: Curves) -> list[Claim]:
    """Tables 2 and 3, and the training losses of Figures 6 to 11."""
    return [*served_better(curves), *trained_better(curves)]


def best_conformity(values: Mapping[str, Floats]) -> str:
    """The conformity with the smallest mean over the seeds."""
    return min((name for name in values if name != FEDAVG), key=lambda name: values[name].mean())


def kept(curves: Curves) -> list[Claim]:
    """As many devices are kept in each round as the conformity says, up to their weights, from first to last."""
    claims = []
    for name, curve in curves.items():
        settings = curve.runs[0].settings
        conformity, pool = settings["model.conformity"], settings["data.participation.pool_size"]
        shares = curve.cohorts[1] / pool
        first, second = (half.mean(1) for half in np.array_split(shares, 2, axis=1))
        claims += [
            paired(
                f"{name}: share of a round's devices that are kept",
                f"{shares.mean():.2f}, from {shares.min():.2f} to {shares.max():.2f}",
                f"{conformity} ± {NEAR}",
                *within(shares.mean(1) - conformity, NEAR),
            ),
            paired(
                f"{name}: the same in the first and in the second half of the rounds",
                listed((first, second)),
                f"within {STEADY}",
                *within(first - second, STEADY),
            ),
        ]
    return claims


def period_matters_little(curves: Curves) -> list[Claim]:
    """It makes no large difference whether the quantile is computed in each round or less often."""
    every = errors(curves[HALF], "p90")
    claims = []
    for name, curve in curves.items():
        if name != HALF:
            difference = errors(curve, "p90") - every
            text = f"{name}: 90th percentile of the test error, minus that with a quantile in each round (points)"
            band = within(difference, NO_LARGE_EFFECT)
            claims.append(paired(text, spread(difference), f"within {NO_LARGE_EFFECT}", *band))
    return claims


def same_tails(curves: Curves) -> list[Claim]:
    """The quantile that is found by sums alone keeps the same devices, and costs more sums."""
    exact, summed = curves[HALF], curves[SUMS]
    sizes = [np.array([list(run.logged["system/cohort"].values()) for run in curve.runs]) for curve in (exact, summed)]
    agree = float((sizes[0] == sizes[1]).mean())
    difference = errors(summed, "p90") - errors(exact, "p90")
    calls = [float((curve.calls[:, -1] / curve.rounds[-1]).mean()) for curve in (exact, summed)]
    return [
        fact(
            "share of the rounds in which the exact quantile and that from sums keep as many devices",
            f"{agree:.2f}",
            f"at least {SAME_TAILS}",
            agree >= SAME_TAILS,
        ),
        paired(
            "90th percentile of the test error with sums, minus that with the exact quantile (points)",
            spread(difference),
            f"within {ON_PAR}",
            *within(difference, ON_PAR),
        ),
        fact(
            "sums per round: exact, from sums",
            listed(calls, 1),
            "more from sums",
            calls[0] < calls[1],
        ),
    ]
