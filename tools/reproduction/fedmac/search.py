"""Learning rates of every method on images, evaluated on validation samples; test samples are not looked at."""

from collections.abc import Mapping, Sequence

import numpy as np

from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim
from reproduction.fedmac.accuracy import ROWS
from reproduction.fedmac.runs import TIE
from reproduction.runs import Place, Sweep, finished_runs, over_all_samples, publish, tried

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
    """Train all methods with some rates, and publish how they do on validation samples; makes no claims."""
    trials, rows = place._replace(folder=place.folder / "search"), []
    for method, rates in ((method, rates) for method, grid in GRIDS.items() for rates in grid):
        sweep = Sweep((method,), {f"model.{key}": (f"{value:g}",) for key, value in rates.items()}, HELD)
        tried(trials, sweep)
        settings = ", ".join(f"{key}={value:g}" for key, value in rates.items())
        rows.append([method, settings, *validation(trials, method, sweep.names[0])])
    title = f"{place.pair}: validation accuracy (%), means over the seeds; '-' is a run that did not finish"
    publish(place, "search", markdown(title, ["method", "rates", "best", "last"], rows))
    return []


def validation(place: Place, method: str, name: str) -> tuple[str, str]:
    """Best and last accuracy of a method's own models over all validation samples, as means over the seeds."""
    model = dict(ROWS)[method]  # the last row of a method is that of its personal models
    if not (runs := finished_runs(place, name)):
        return "-", "-"
    scores = np.array([over_all_samples(run, "val", model) for run in runs])
    return f"{100 * scores.max(1).mean():.2f}", f"{100 * scores[:, -1].mean():.2f}"
