"""Delta-FL's claims about its tables and figures, checked on the curves of runs."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from pfl_lightning.report import Curve
from pfl_lightning.report.tails import TEST, TRAIN
from reproduction.claims import FAILS, HOLDS, INCONCLUSIVE, OURS, Claim, Floats, any_of, listed, paired, spread, within

Curves = Mapping[str, Curve]  # of one pair, by the names of their folders
Check = Callable[[Curves], list[Claim]]

ON_PAR = 1.0  # points of the mean error that may be lost
NO_LARGE_EFFECT = 2.0  # points of the 90th percentile
# share of the pool by which the number of devices kept may miss the conformity, since they weigh unequally, and by
# which it may change from the first half of the rounds to the second; at most half of the conformity
NEAR, STEADY = 0.15, 0.1
NEARLY, LATER = 0.95, 0.1  # shares of the final accuracy that is reached, and of the run by which it may be later
DRAWS = 2000  # of seeds and test devices
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


def one_below(claim: str, values: Mapping[str, Floats]) -> Claim:
    """That some conformity has a smaller value than FedAvg."""
    differences = (values[FEDAVG] - each for name, each in values.items() if name != FEDAVG)
    return any_of(claim, by_conformity(values), f"one below {FEDAVG}", *differences)


def served_better(curves: Curves) -> list[Claim]:
    """Some conformity below 1 has a smaller 90th percentile of the error than FedAvg, and its mean is on par."""
    tails = {name: errors(curve, "p90") for name, curve in curves.items()}
    means = {name: errors(curve, "mean") for name, curve in curves.items()}
    best = min((name for name in tails if name != FEDAVG), key=lambda name: tails[name].mean())
    return [
        one_below("90th percentile of the test error, by conformity (%)", tails),
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
    return [one_below("90th percentile of the training loss, weighted by samples, by conformity", tails)]


def served_better_elsewhere(curves: Curves) -> list[Claim]:
    """A conformity has a smaller 90th percentile of the error than FedAvg for other test devices of the same kind, too.

    All seeds have the same test devices, so that their spread does not tell this; draws of devices and seeds do (the
    percentile bootstrap of Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 1979).
    """
    reference = np.array(curves[FEDAVG].final_errors)
    others = {name: np.array(curve.final_errors) for name, curve in curves.items() if name != FEDAVG}
    return [elsewhere(name.removeprefix(CONFORMITY), errors, reference) for name, errors in others.items()]


def elsewhere(conformity: str, errors: Floats, reference: Floats) -> Claim:
    """That the 90th percentile of some errors is below another, whichever devices are drawn, ``[seeds, devices]``."""

    def gap(seeds: NDArray[np.int64], devices: NDArray[np.int64]) -> float:
        tail, other = (np.percentile(each[np.ix_(seeds, devices)], 90, axis=1) for each in (errors, reference))
        return float(100 * (tail - other).mean())

    seeds, devices = map(np.arange, errors.shape)
    drawn = bootstrap((seeds, devices), gap, n_resamples=DRAWS, vectorized=False, method="percentile", random_state=0)
    low, high = drawn.confidence_interval
    return Claim(
        f"{conformity}: 90th percentile of the test error minus FedAvg's, draws of {len(devices)} devices (points)",
        f"{gap(seeds, devices):.1f}, from {low:.1f} to {high:.1f}",
        "below 0",
        HOLDS if high < 0 else FAILS if low > 0 else INCONCLUSIVE,
        OURS,
    )


def served_and_trained_better(curves: Curves) -> list[Claim]:
    """Tables 2 and 3, and the training losses of Figures 6 to 11."""
    return [*served_better(curves), *trained_better(curves), *served_better_elsewhere(curves)]


def as_fast(curves: Curves) -> list[Claim]:
    """Each conformity is near the accuracy that it ends with after as many sums as FedAvg, up to a tenth of the run."""
    sums = {name: curve.reach(NEARLY * curve.means[:, -1:], curve.calls)[1] for name, curve in curves.items()}
    limit = LATER * curves[FEDAVG].calls[:, -1]
    return [
        paired(
            f"{name.removeprefix(CONFORMITY)}: sums until {NEARLY:.0%} of its final mean test accuracy, and FedAvg's",
            listed((own, sums[FEDAVG]), 0),
            f"less than {LATER:.0%} of the run later",
            limit - (own - sums[FEDAVG]),
        )
        for name, own in sums.items()
        if name != FEDAVG
    ]


def kept(curves: Curves) -> list[Claim]:
    """As many devices are kept in each round as the conformity says, up to their weights, from first to last."""
    claims = []
    for name, curve in curves.items():
        settings = curve.runs[0].settings
        conformity, pool = settings["model.conformity"], settings["data.participation.pool_size"]
        shares, band, change = curve.cohorts[1] / pool, min(NEAR, conformity / 2), min(STEADY, conformity / 2)
        first, second = (half.mean(1) for half in np.array_split(shares, 2, axis=1))
        claims += [
            paired(
                f"{name}: share of a round's devices that are kept",
                f"{shares.mean():.2f}, from {shares.min():.2f} to {shares.max():.2f}",
                f"{conformity} ± {band}",
                *within(shares.mean(1) - conformity, band),
            ),
            paired(
                f"{name}: the same in the first and in the second half of the rounds",
                listed((first, second)),
                f"within {change}",
                *within(first - second, change),
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
    """The quantile that is found by sums alone keeps as many devices in most rounds, and costs more sums."""
    exact, summed = curves[HALF], curves[SUMS]
    agree = (exact.cohorts[1] == summed.cohorts[1]).mean(1)
    difference = errors(summed, "p90") - errors(exact, "p90")
    calls = [curve.calls[:, -1] / curve.rounds[-1] for curve in (exact, summed)]
    return [
        paired(
            "share of the rounds in which the exact quantile and that from sums keep as many devices",
            spread(agree),
            f"above {SAME_TAILS}",
            agree - SAME_TAILS,
        ),
        paired(
            "90th percentile of the test error with sums, minus that with the exact quantile (points)",
            spread(difference),
            f"within {ON_PAR}",
            *within(difference, ON_PAR),
        ),
        paired("sums per round: exact, from sums", listed(calls, 1), "more from sums", calls[1] - calls[0]),
    ]
