"""Learning rates of every method on images, evaluated on validation samples; test samples are not looked at."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from rich.console import Console
from rich.table import Table

from reproduction.claims import Claim
from reproduction.fedmac.accuracy import ROWS
from reproduction.fedmac.runs import TIE
from reproduction.runs import Place, Sweep, finished_runs, over_all_samples, start

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


def search_claims(place: Place) -> list[Claim]:
    """Train all methods with some rates, and print how they do on validation samples; makes no claims."""
    place = place._replace(folder=place.folder / "search")
    for trial in chain.from_iterable(trials().values()):
        start(place, trial)  # a rate with which runs diverge is an answer, too
    table = Table("method", "rates", "best validation accuracy (%)", "last", title=place.pair)
    for method, sweeps in trials().items():
        for rates, trial in zip(GRIDS[method], sweeps, strict=True):
            shown = ", ".join(f"{key}={value:g}" for key, value in rates.items())
            table.add_row(method, shown, *validation(place, method, trial.names[0]))
    Console().print(table)
    return []


def trials() -> dict[str, list[Sweep]]:
    """The runs of each method, one sweep for each point of its grid."""
    return {
        method: [Sweep((method,), {f"model.{k}": (f"{v:g}",) for k, v in rates.items()}, HELD) for rates in grid]
        for method, grid in GRIDS.items()
    }


def validation(place: Place, method: str, name: str) -> tuple[str, str]:
    """Best and last accuracy of a method's own models over all validation samples, as means over the seeds."""
    model = dict(ROWS)[method]  # the last row of a method is that of its personal models
    if not (runs := finished_runs(place, name)):
        return "-", "-"
    scores = np.array([over_all_samples(run, "val", model) for run in runs])
    return f"{100 * scores.max(1).mean():.2f}", f"{100 * scores[:, -1].mean():.2f}"
