"""The runs behind Delta-FL's tables and figures: five pairs of data and network.

The runs of a pair share one folder, so that figures which need the same ones train them once.
"""

import shlex
from collections.abc import Mapping, Sequence

from pfl_lightning.report import Curve
from reproduction.runs import CONFIGS, Place, Scale, Sweep, data_options, trained

PAIRS = ("femnist_linear", "femnist_convnet", "sent140_linear", "sent140_rnn", "shakespeare_rnn")
SEEDS: Mapping[Scale, Sequence[int]] = {"small": [1, 2, 3], "full": [1, 2, 3, 4, 5]}

# settings that take two CPU cores minutes, on what is at hand of the data
SMALL: Mapping[str, str] = {
    "femnist_linear": (
        "--data.num_clients=85 --data.participation.pool_size=20 --data.choice_fraction=0.25 --model.lr=0.1 "
        "--trainer.max_steps=200 --trainer.val_check_interval=5"
    ),
    "femnist_convnet": (
        "--data.num_clients=85 --data.participation.pool_size=15 --data.choice_fraction=0.25 "
        "--model.network.channels=[16,32] --model.lr=0.096 --model.lr_decay_every=70 "
        "--trainer.max_steps=100 --trainer.val_check_interval=5"
    ),
    "sent140_linear": (
        "--data.num_clients=95 --data.partition.min_samples=5 --data.participation.pool_size=20 --data.normalize=none "
        "--model.lr=0.1 --trainer.max_steps=200 --trainer.val_check_interval=5"
    ),
    "sent140_rnn": (
        "--data.num_clients=95 --data.partition.min_samples=5 --data.participation.pool_size=20 "
        "--model.lr_decay_every=60 --trainer.max_steps=100 --trainer.val_check_interval=5"
    ),
    "shakespeare_rnn": (
        "--data.num_clients=60 --data.participation.pool_size=10 --data.choice_fraction=0.25 --model.network.hidden=64 "
        "--model.epoch_steps=20 --model.lr=1.0 --model.lr_decay_every=40 "
        "--trainer.max_steps=60 --trainer.val_check_interval=10"
    ),
}
TAILS = Sweep(("delta-fl",), {"model.conformity": (0.8, 0.5, 0.1)})
FEDAVG: Mapping[str, str] = {"femnist_linear": "--model.weight_decay=1e-9"}  # where it differs from Delta-FL's


def fit_options(place: Place) -> list[str]:
    """Options of ``pfl fit`` for all runs of a pair."""
    file = f"--config={CONFIGS}/papers/delta_fl/{place.pair}.yaml"
    small = shlex.split(SMALL[place.pair]) if place.scale == "small" else []
    return [file, *data_options(place.root, place.pair.partition("_")[0]), *small]


def with_own_options(place: Place, sweep: Sweep) -> Sweep:
    """A sweep of one method, with what FedAvg alone is told on some pairs."""
    own = FEDAVG.get(place.pair, "") if sweep.methods == ("fedavg",) else ""
    return sweep._replace(options=[*shlex.split(own), *sweep.options])


def curves(place: Place, sweeps: Sequence[Sweep]) -> dict[str, Curve]:
    """Train all runs of some sweeps, and read them: a curve for each folder of a sweep, by its name.

    Raises:
        SystemExit: If a run fails.
    """
    found = trained(place, [with_own_options(place, sweep) for sweep in sweeps])
    return {name: Curve(runs, "global") for name, runs in found.items()}
