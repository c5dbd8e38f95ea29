"""Learning rates and L2 penalties, evaluated on validation devices that never train.

The paper reuses FedAvg's rate for Delta-FL, too, but chooses it by the mean training loss; the penalty it chooses for
FedAvg and for each conformity, by the 90th percentile of the error of such devices.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import yaml

from pfl_lightning.report import Curve
from pfl_lightning.report.tables import markdown
from pfl_lightning.report.tails import TEST
from reproduction.claims import Claim
from reproduction.delta_fl.runs import TAILS, with_own_options
from reproduction.runs import CONFIGS, Place, Sweep, finished_runs, publish, tried

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the paper's learning rate
PENALTIES = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5)
HALF = "--data.val_clients=0.5"  # of the training devices


def search_claims(place: Place) -> list[Claim]:
    """Train FedAvg with some learning rates, and publish how it serves the validation devices; makes no claims."""
    rates = learning_rates(place)
    sweep = Sweep(("fedavg",), {"model.lr": rates})
    labels = {name: f"{rate:g}" for name, rate in zip(sweep.names, rates, strict=True)}
    return _served(place, "search", "learning rate", [sweep], labels)


def penalty_claims(place: Place) -> list[Claim]:
    """Train FedAvg and each conformity with some L2 penalties, and publish the same; makes no claims."""
    penalty = {"model.weight_decay": PENALTIES}
    sweeps = [each._replace(vary={**each.vary, **penalty}) for each in (Sweep(("fedavg",)), TAILS)]
    return _served(place, "penalties", "method", sweeps, {name: name for each in sweeps for name in each.names})


def _served(place: Place, item: str, what: str, sweeps: Sequence[Sweep], labels: Mapping[str, str]) -> list[Claim]:
    """Train some sweeps, and publish a table with a row for each of their folders, which has a label."""
    trials = place._replace(folder=place.folder / item)
    for sweep in sweeps:
        tried(trials, with_own_options(place, sweep._replace(options=[HALF])))
    rows = [[label, *validation(trials, name)] for name, label in labels.items()]
    title = f"{place.pair}: the validation devices, means over the seeds; '-' is a run that did not finish"
    publish(place, item, markdown(title, (what, "mean loss", "90th percentile of the error (%)"), rows))
    return []


def learning_rates(place: Place) -> list[float]:
    """The learning rates that are tried."""
    settings = yaml.safe_load((CONFIGS / f"papers/delta_fl/{place.pair}.yaml").read_text())
    return [float(f"{factor * settings['model']['init_args']['lr']:g}") for factor in FACTORS]


def validation(place: Place, name: str) -> tuple[str, str]:
    """Both numbers of a row, as means over the seeds."""
    if not (runs := finished_runs(place, name)):
        return "-", "-"
    clients = Curve(runs, "global").final("val")
    loss = np.mean([each.loss.mean() for each in clients])
    tail = np.mean([TEST["p90"](1 - each.correct / each.samples) for each in clients])
    return f"{loss:.4f}", f"{100 * tail:.1f}"
