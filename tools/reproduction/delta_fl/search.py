"""Learning rates for FedAvg, evaluated on validation devices that never train, as the paper chooses its own."""

from collections.abc import Sequence

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from pfl_lightning.report import Curve
from pfl_lightning.report.tails import TEST
from reproduction.claims import Claim
from reproduction.delta_fl.runs import with_own_options
from reproduction.runs import CONFIGS, Place, Sweep, finished_runs, start

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the paper's learning rate
HALF = "--data.val_clients=0.5"  # of the training devices


def search_claims(place: Place) -> list[Claim]:
    """Train FedAvg with some learning rates, and print how it serves the validation devices; makes no claims."""
    place = place._replace(folder=place.folder / "search")
    rates = learning_rates(place)
    sweep = trials(rates)
    start(place, with_own_options(place, sweep))  # a rate with which runs diverge is an answer, too
    Console().print(rates_table(place, dict(zip(rates, sweep.names, strict=True))))
    return []


def learning_rates(place: Place) -> list[float]:
    """The learning rates that are tried."""
    settings = yaml.safe_load((CONFIGS / f"papers/delta_fl/{place.pair}.yaml").read_text())
    return [float(f"{factor * settings['model']['init_args']['lr']:g}") for factor in FACTORS]


def trials(rates: Sequence[float]) -> Sweep:
    """Runs of FedAvg that keep validation devices."""
    return Sweep(("fedavg",), {"model.lr": rates}, [HALF])


def rates_table(place: Place, names: dict[float, str]) -> Table:
    """Mean loss and 90th percentile of the error on the validation devices; nothing where a run did not finish.

    Args:
        place: The runs.
        names: Their folders by learning rate.
    """
    table = Table("learning rate", "mean loss", "90th percentile of the error (%)", title=place.pair)
    for rate, name in names.items():
        table.add_row(f"{rate:g}", *validation(place, name))
    return table


def validation(place: Place, name: str) -> tuple[str, str]:
    """Both numbers of a row, as means over the seeds."""
    if not (runs := finished_runs(place, name)):
        return "-", "-"
    clients = Curve(runs, "global").final("val")
    loss = np.mean([each.loss.mean() for each in clients])
    tail = np.mean([TEST["p90"](1 - each.correct / each.samples) for each in clients])
    return f"{loss:.4f}", f"{100 * tail:.1f}"
