"""Learning rates of every method on images, evaluated on validation samples; test samples are not looked at."""

from collections.abc import Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim
from reproduction.fedmac.accuracy import ROWS, claims_of
from reproduction.fedmac.runs import TIE
from reproduction.runs import Place, Sweep, finished_runs, over_all_samples, publish, trained, tried

HELD = ("--data.val_fraction=0.2", "--trainer.max_steps=200", "--trainer.val_check_interval=20")
GROWTH = 2e-4  # lr * correlation of FedMac: a growth exponent of 3.2 in 800 rounds of 20 steps
LRS = (0.02, 0.05, 0.1)
GRIDS: Mapping[str, Sequence[Mapping[str, float]]] = {
    "fedavg": [{"lr": lr} for lr in LRS],
    "fedprox": [{"lr": lr} for lr in LRS],
    "heurfedamp": [{"lr": lr} for lr in LRS],
    "per-fedavg": [{"inner_lr": inner, "lr": lr} for inner in (0.03, 0.1, 0.3) for lr in (0.003, 0.03)],
    "pfedme": [{"lr": lr} for lr in LRS],
    "fedmac": [{"lr": lr, "correlation": GROWTH / lr, "copy_lr": TIE / (GROWTH / lr)} for lr in (*LRS, 0.2)],
}


class Trial(NamedTuple):
    """Rates of a method, and the accuracy of its own models on validation samples in %, as means over the seeds.

    Attributes:
        rates: Values of settings of the model.
        best: In the best round; -inf for runs that did not finish.
        last: In the last round.
    """

    rates: Mapping[str, float]
    best: float = -inf
    last: float = -inf


def search_claims(place: Place) -> list[Claim]:
    """Try the rates; makes no claims."""
    search(place)
    return []


def searched_claims(place: Place) -> list[Claim]:
    """Table 1 or 2 by the rates that are best on validation samples for the first seed."""
    trials = search(place._replace(seeds=place.seeds[:1]))
    sweeps = {method: sweep_of(method, max(each, key=attrgetter("best")).rates) for method, each in trials.items()}
    here = place._replace(folder=place.folder / "searched")
    found = trained(here, list(sweeps.values()))
    return claims_of(here, {method: found[sweep.names[0]] for method, sweep in sweeps.items()})


def search(place: Place) -> dict[str, list[Trial]]:
    """Train all methods with some rates, and publish how they do on validation samples."""
    there = place._replace(folder=place.folder / "search")
    trials = {method: [tried_rates(there, method, rates) for rates in grid] for method, grid in GRIDS.items()}
    rows = [_row(method, trial) for method, each in trials.items() for trial in each]
    title = f"{place.pair}: validation accuracy (%), means over the seeds; '-' is a run that did not finish"
    publish(place, "search", markdown(title, ["method", "rates", "best", "last"], rows))
    return trials


def sweep_of(method: str, rates: Mapping[str, float], options: Sequence[str] = ()) -> Sweep:
    """Runs of a method with these rates."""
    return Sweep((method,), {f"model.{key}": (f"{value:g}",) for key, value in rates.items()}, options)


def tried_rates(place: Place, method: str, rates: Mapping[str, float]) -> Trial:
    """Train a method with these rates, and evaluate its own models over all validation samples."""
    sweep = sweep_of(method, rates, HELD)
    tried(place, sweep)
    model = dict(ROWS)[method]  # the last row of a method is that of its personal models
    if not (runs := finished_runs(place, sweep.names[0])):
        return Trial(rates)
    scores = 100 * np.array([over_all_samples(run, "val", model) for run in runs])
    return Trial(rates, scores.max(1).mean(), scores[:, -1].mean())


def _row(method: str, trial: Trial) -> list[str]:
    rates = ", ".join(f"{key}={value:g}" for key, value in trial.rates.items())
    return [method, rates, *("-" if value == -inf else f"{value:.2f}" for value in (trial.best, trial.last))]
