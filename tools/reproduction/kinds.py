"""Kinds of claims that are computations of their own; see ``rows.py`` for the others."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import bootstrap

from pfl_lightning import load_method
from pfl_lightning.metrics import pair_correlation, pairs
from pfl_lightning.report import Curve, RunRecord, cosine_figure, save_figure
from pfl_lightning.server import cosines
from pfl_lightning.system import TwoPopulation
from reproduction.claims import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    OURS,
    Claim,
    Floats,
    fact,
    listed,
    ours,
    paired,
    spread,
    within,
)
from reproduction.items import Spec
from reproduction.measures import REACHED
from reproduction.results import Results, number_of
from reproduction.runs import split_data

DRAWS = 2000  # of seeds and test devices
SPEED_DRAWS = 200  # of the clients' speeds
TIED = 1.0  # points of the mean accuracy over time within which two curves are tied
GRID = 200  # points of time
UNSTEADY = 5.0  # points: a published number that spreads so much says nothing
ROUNDING = 1e-6  # of the error of consensus before mixing


def on_par(row: Spec, results: Results) -> list[Claim]:
    """The mean error of what has the smallest tail is at most a margin above a reference's."""
    tails = {name: results.values(name, {"error": {"statistic": "p90"}}).mean() for name in row["others"]}
    best = min(tails, key=lambda name: tails[name])
    names = [row["reference"], *row["others"]]
    means = {name: results.values(name, {"error": {"statistic": "mean"}}) for name in names}
    texts = [f"{label}: {spread(means[name])}" for label, name in zip(row["labels"], names, strict=True)]
    claim = row["claim"].replace("BEST", str(row["labels"][names.index(best)]))
    gap = means[best] - means[row["reference"]]
    return [paired(claim, "; ".join(texts), row["expected"], row["margin"] - gap)]


def elsewhere(row: Spec, results: Results) -> list[Claim]:
    """The 90th percentile of the errors is below a reference's for other test devices of the same kind, too.

    All seeds have the same test devices, so that their spread does not tell this; draws of devices and seeds do (the
    percentile bootstrap of Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 1979).
    """
    errors = [np.array(results.curve(name).final("error")) for name in (row["left"], row["right"])]

    def gap(seeds: NDArray[np.int64], devices: NDArray[np.int64]) -> float:
        tail, other = (np.percentile(each[np.ix_(seeds, devices)], 90, axis=1) for each in errors)
        return float(100 * (tail - other).mean())

    seeds, devices = map(np.arange, errors[0].shape)
    drawn = bootstrap((seeds, devices), gap, n_resamples=DRAWS, vectorized=False, method="percentile", random_state=0)
    low, high = drawn.confidence_interval
    claim = f"{row['claim']}, draws of {len(devices)} devices (points)"
    measured = f"{gap(seeds, devices):.1f}, from {low:.1f} to {high:.1f}"
    return [Claim(claim, measured, "below 0", HOLDS if high < 0 else FAILS if low > 0 else INCONCLUSIVE, OURS)]


def share_kept(row: Spec, results: Results) -> list[Claim]:
    """As many devices are kept in each round as the conformity says, up to their weights, from first to last."""
    curve = results.curve(row["of"])
    shares = curve.cohorts.to_numpy().T / curve.runs[0].settings["data.participation.pool_size"]
    first, second = (half.mean(1) for half in np.array_split(shares, 2, axis=1))
    return [
        paired(
            f"{row['of']}: share of a round's devices that are kept",
            f"{shares.mean():.2f}, from {shares.min():.2f} to {shares.max():.2f}",
            f"{row['conformity']} ± {row['band']}",
            *within(shares.mean(1) - row["conformity"], row["band"]),
        ),
        paired(
            f"{row['of']}: the same in the first and in the second half of the rounds",
            listed((first, second)),
            f"within {row['change']}",
            *within(first - second, row["change"]),
        ),
    ]


def devices(row: Spec, results: Results) -> list[Claim]:
    """The devices are as many as in the paper's Table 1, and about as large; which users train is random."""
    data = split_data(results.part.place.options)
    counts = data.training_counts
    found = [len(counts), data.num_clients - len(counts)]
    smallest, median, largest = int(counts.min()), float(np.median(counts)), int(counts.max())
    near = abs(median / row["median"] - 1) <= row["margin"]
    numbers = [row["train"], row["test"]]
    sizes = f"{row['smallest']}, {row['median']} ± {row['margin']:.0%}, {row['largest']} in one half"
    measured = f"{smallest}, {median:g}, {largest}"
    text = "samples of the smallest, the median and the largest training device"
    return [
        fact("training and test devices", ", ".join(map(str, found)), ", ".join(map(str, numbers)), found == numbers),
        fact(text, measured, sizes, smallest == row["smallest"] and near),
    ]


def smallest_share(row: Spec, results: Results) -> list[Claim]:
    """Every client has at least a share of the mean number of training samples."""
    sizes = split_data(results.part.place.options).class_counts()["train"].sum(1)
    smallest = float(sizes.min() / sizes.mean())
    return [fact(row["claim"], f"{smallest:.2f}", f"at least {row['least']}", smallest >= row["least"])]


def ruined(row: Spec, results: Results) -> list[Claim]:
    """The last value is below the one before, and this below the usual ones, the better of the first two."""
    values = [results.values(name, row["measure"]) for name in row["of"]]
    usual = max(values[:2], key=np.mean)
    return [paired(row["claim"], listed(values), row["expected"], values[-2] - values[-1], usual - values[-2])]


def agrees(row: Spec, results: Results) -> list[Claim]:
    """A value is as near to the published one as a band, or as its standard deviation if that is larger.

    There is no claim where the published trials differ by so much that any number would agree.
    """
    printed = results.printed.get(row["left"])
    if printed is None:
        return []
    deviation = float(str(printed).partition("± ")[2] or 0)
    if deviation > UNSTEADY:
        return []
    number, band = number_of(printed), max(row["band"], deviation)
    values = results.values(row["left"], row["measure"])
    expected = f"{number:.2f} ± {band:.2f}"
    measured = spread(values, nan="ended early")
    claim = paired(row["claim"], measured, expected, *within(values - number, band))
    return [claim._replace(printed=printed if deviation else f"{number:.2f}")]


# DePRL


def logged(results: Results, name: str, tag: str) -> Floats:
    """What the runs of a name have logged in each round, ``[seeds, rounds]``."""
    runs, _ = results.runs_of(name)
    return np.array([run.logged[tag].dropna() for run in runs if run])


def mixed_at_once(row: Spec, results: Results) -> list[Claim]:
    """Nothing of the error of consensus is left after mixing."""
    before, after = (logged(results, row["of"], f"consensus/{when}") for when in ("before", "after"))
    left = float((after / before).max())
    return [fact(row["claim"], f"{left:.1g}", f"at most {ROUNDING:g}, by rounding", left <= ROUNDING)]


def rises_then_falls(row: Spec, results: Results) -> list[Claim]:
    """The error of consensus after mixing grows first, and then falls with the learning rate."""
    after = logged(results, row["of"], "consensus/after")
    peak = int(after.mean(0).argmax())
    claim = f"{row['claim']} after rounds 1, {peak + 1} (the largest) and {after.shape[1]}"
    measured = ", ".join(f"{after[:, at].mean():.2g}" for at in (0, peak, -1))
    differences = [after[:, peak] - after[:, at] for at in (0, -1)]
    return [paired(claim, measured, "rises, then falls", *differences)]


def alike(row: Spec, results: Results) -> list[Claim]:
    """Clients with similar data have similar heads, and all bodies are alike; draws the cosines of the first seed."""
    place, alpha = results.part.place, row["alpha"]
    data = split_data([*place.options, f"--data.partition.alpha={alpha}"])
    counts = torch.from_numpy(data.class_counts()["train"])
    maps = [cosines_of(run, counts) for run in results.runs_of(row["of"])[0] if run]
    first = {name: entries.numpy() for name, entries in maps[0].items()}
    save_figure(cosine_figure(first, counts.numpy()), place.folder / f"fig3_alpha={alpha}.png")
    correlations = np.array([float(pair_correlation(each["data"], each["heads"])) for each in maps])
    smallest = np.array([float(pairs(each["bodies"]).min() + 1) / 2 for each in maps])
    text = f"alpha {alpha}: correlation of the cosines of heads with those of data"
    other = f"alpha {alpha}: smallest cosine c of two bodies, as (c + 1) / 2"  # which the authors' code draws
    bound = row["bound"]
    return [
        paired(text, spread(correlations), "above 0", correlations),
        *ours([paired(other, spread(smallest, 4), f"above {bound}", smallest - bound)]),
    ]


def cosines_of(run: RunRecord, counts: torch.Tensor) -> dict[str, torch.Tensor]:
    """Cosines between clients at the end of a run: of their training samples of each class, their heads and bodies.

    Args:
        run: The run.
        counts: Training samples of each client and class, ``[clients, classes]``.
    """
    method = load_method(run.folder / "checkpoints/last.ckpt")
    names = [sorted(method.parts[part] & method.engine.trainable) for part in ("head", "body")]
    products = [counts.double() @ counts.double().T, *map(method.clients.inner_products, names)]
    return {name: cosines(entries).cpu() for name, entries in zip(("data", "heads", "bodies"), products, strict=True)}


# SRPFL


def best_over_time(row: Spec, results: Results) -> list[Claim]:
    """One curve is the best of all, or tied, in mean accuracy until the first runs end."""
    curves, name = results.labelled, row["of"]
    end = min(float(curve.times(0.0)[:, -1].min()) for curve in curves.values())
    seconds = np.linspace(0, end, GRID)
    areas = {label: 100 * mean_until(curve, seconds) for label, curve in curves.items()}
    best = max(areas, key=lambda label: areas[label].mean())
    measured = f"{spread(areas[name], 1)}; the best is {best}, {spread(areas[best], 1)}"
    claim = f"{row['claim']} (mean accuracy in the first {end:.0f} seconds, %)"
    behind = [areas[label] - areas[name] for label in areas if label != name]
    return [paired(claim, measured, row["expected"], *(TIED - gap for gap in behind))]


def mean_until(curve: Curve, seconds: Floats) -> Floats:
    """Mean accuracy at some times, ``[seeds]``."""
    both = zip(curve.times(0.0), curve.means, strict=True)
    return np.array([np.interp(seconds, times, means).mean() for times, means in both])


def worst(row: Spec, results: Results) -> list[Claim]:
    """Some curves end below all others."""
    ends = {name: 100 * curve.means[:, -1] for name, curve in results.labelled.items()}
    order = sorted(ends, key=lambda name: float(ends[name].mean()))
    measured = ", ".join(f"{name} {spread(ends[name], 1)}" for name in order[:3])
    gaps = [ends[name] - ends[low] for name in ends if name not in row["of"] for low in row["of"]]
    return [paired(row["claim"], measured, row["expected"], *gaps)]


def slower_with_stragglers(panels: Mapping[float, Results], fast: str, slow: str) -> list[Claim]:
    """More stragglers cost more time, with doubling less than without.

    The slowest of few clients is a matter of luck, so the time is the mean over many draws of all clients' speeds: of
    each run, what the rounds until its accuracy would have taken. The speeds do not change what a method without
    doubling learns; with doubling they choose who learns first, but no client's data depend on its speed.

    Args:
        panels: The panels by the share of stragglers.
        fast: Label of the curve with doubling.
        slow: That of the one without.
    """
    few, many = sorted(panels)
    curves = {share: results.labelled for share, results in panels.items()}
    goal = REACHED * curves[few][slow].means[:, -1]
    seconds = {name: [mean_seconds(curves[share][name], goal, share) for share in (few, many)] for name in (slow, fast)}
    claims = []
    for name, (first, second) in seconds.items():
        text = (
            f"{name} needs longer with {many:.0%} stragglers than with {few:.0%} (seconds, mean of {SPEED_DRAWS} draws)"
        )
        later = mean_seconds(curves[many][name], goal, many, bound=True)
        claims.append(paired(text, f"{spread(first, 1)}; {spread(second, 1)}", "rising", later - first))
    lost = {name: second - first for name, (first, second) in seconds.items()}
    measured = ", ".join(f"{name} {spread(values, 1)}" for name, values in lost.items())
    text = "Doubling softens what more stragglers cost (seconds lost)"
    return [*claims, paired(text, measured, "less with doubling", lost[slow] - lost[fast])]


def mean_seconds(curve: Curve, goal: Floats, stragglers: float, bound: bool = False) -> Floats:
    """Seconds until each seed's accuracy, averaged over draws of the speeds; the fastest clients take part.

    Args:
        curve: A curve whose clients all belong to the pool.
        goal: The accuracies, ``[seeds]``.
        stragglers: Share of slow clients.
        bound: Whether a run that never gets there counts with all its seconds, which is less than it would need.

    Returns:
        Nan for never, ``[seeds]``.
    """
    clients = len(curve.final("score")[0])
    draws = [np.sort(TwoPopulation(stragglers, seed=seed).times(0, clients)) for seed in range(SPEED_DRAWS)]
    of_a_round = np.mean(draws, axis=0)
    sizes = curve.cohorts.to_numpy(dtype=int).T
    passed = of_a_round[sizes - 1].cumsum(1)  # after each round, [seeds, rounds]
    times = np.insert(passed, 0, 0, axis=1)[:, curve.rounds]
    _, seconds = curve.reach(goal[:, None], times)
    return np.where(np.isnan(seconds), times[:, -1], seconds) if bound else seconds


KINDS: dict[str, Callable[[Spec, Any], list[Claim]]] = {
    kind.__name__: kind
    for kind in (
        *(on_par, elsewhere, share_kept, devices, smallest_share, ruined, agrees, mixed_at_once, rises_then_falls),
        *(alike, best_over_time, worst),
    )
}
