"""Learning rates for FedAvg, evaluated on validation devices that never train.

The paper reuses FedAvg's rate, too, but chooses it by the mean training loss, and by such devices its regularisation.
"""

import numpy as np
import yaml

from pfl_lightning.report import Curve
from pfl_lightning.report.tables import markdown
from pfl_lightning.report.tails import TEST
from reproduction.claims import Claim
from reproduction.delta_fl.runs import with_own_options
from reproduction.runs import CONFIGS, Place, Sweep, finished_runs, publish, tried

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the paper's learning rate
HALF = "--data.val_clients=0.5"  # of the training devices
COLUMNS = ("learning rate", "mean loss", "90th percentile of the error (%)")


def search_claims(place: Place) -> list[Claim]:
    """Train FedAvg with some learning rates, and publish how it serves the validation devices; makes no claims."""
    trials, rates = place._replace(folder=place.folder / "search"), learning_rates(place)
    sweep = Sweep(("fedavg",), {"model.lr": rates}, [HALF])
    tried(trials, with_own_options(place, sweep))
    rows = [[f"{rate:g}", *validation(trials, name)] for rate, name in zip(rates, sweep.names, strict=True)]
    title = f"{place.pair}: FedAvg on the validation devices, means over the seeds; '-' is a run that did not finish"
    publish(place, "search", markdown(title, COLUMNS, rows))
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
