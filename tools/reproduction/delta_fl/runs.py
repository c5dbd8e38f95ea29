"""The runs behind Delta-FL's tables and figures: five pairs of data and network, made by ``pfl sweep`` and read again.

The runs of a pair share one folder, so that figures which need the same ones train them once.
"""

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from pfl_lightning.report import Curve, read_run

PairName = Literal["femnist_linear", "femnist_convnet", "sent140_linear", "sent140_rnn", "shakespeare_rnn"]
Scale = Literal["small", "full"]

PAIRS: tuple[PairName, ...] = get_args(PairName)
CONFIGS = Path(__file__).parents[3] / "configs"
SEEDS = {"small": [1, 2, 3], "full": [1, 2, 3, 4, 5]}

# settings that take two CPU cores minutes, on what is at hand of the data
SMALL: dict[PairName, str] = {
    "femnist_linear": (
        "--data.num_clients=85 --data.participation.pool_size=20 --data.choice_fraction=0.25 --model.lr=0.1 "
        "--trainer.max_steps=200 --trainer.val_check_interval=50"
    ),
    "femnist_convnet": (
        "--data.num_clients=85 --data.participation.pool_size=15 --data.choice_fraction=0.25 "
        "--model.network.channels=[16,32] --model.lr=0.096 --model.lr_decay_every=70 "
        "--trainer.max_steps=100 --trainer.val_check_interval=50"
    ),
    "sent140_linear": (
        "--data.num_clients=95 --data.partition.min_samples=5 --data.participation.pool_size=20 --data.normalize=none "
        "--model.lr=0.1 --trainer.max_steps=200 --trainer.val_check_interval=50"
    ),
    "sent140_rnn": (
        "--data.num_clients=95 --data.partition.min_samples=5 --data.participation.pool_size=20 "
        "--model.lr_decay_every=60 --trainer.max_steps=100 --trainer.val_check_interval=50"
    ),
    "shakespeare_rnn": (
        "--data.num_clients=60 --data.participation.pool_size=10 --data.choice_fraction=0.25 --model.network.hidden=64 "
        "--model.epoch_steps=20 --model.lr=1.0 --model.lr_decay_every=40 "
        "--trainer.max_steps=60 --trainer.val_check_interval=60"
    ),
}
FEDAVG: dict[PairName, str] = {"femnist_linear": "--model.weight_decay=1e-9"}  # where it differs from Delta-FL's


class Sweep(NamedTuple):
    """Runs of a method.

    Attributes:
        method: Name of its file in ``configs/methods``.
        vary: Values of options of the method; all combinations run.
    """

    method: str
    vary: Mapping[str, Sequence[Any]] = MappingProxyType({})

    @property
    def names(self) -> list[str]:
        """The folders that ``pfl sweep`` makes, one for each combination."""
        grid = product(*self.vary.values())
        labels = [[f"{key}={value}" for key, value in zip(self.vary, values, strict=True)] for values in grid]
        return [",".join([self.method, *each]) for each in labels]

    @property
    def words(self) -> list[str]:
        """What ``pfl sweep`` is told."""
        varied = [f"--vary=model.{key}={','.join(map(str, values))}" for key, values in self.vary.items()]
        return ["--methods", f"{CONFIGS}/methods/{self.method}.yaml", *varied]


class Place(NamedTuple):
    """Where the runs of a pair are, and how they are made.

    Attributes:
        pair: The pair.
        scale: The scale.
        root: Folder with a folder of files for each data set.
        folder: Folder of the runs.
        seeds: Their seeds.
        jobs: Number of runs at the same time.
    """

    pair: PairName
    scale: Scale
    root: Path
    folder: Path
    seeds: list[int]
    jobs: int


def fit_options(place: Place) -> list[str]:
    """Options of ``pfl fit`` for all runs of a pair."""
    data = place.pair.partition("_")[0]
    options = [f"--config={CONFIGS}/papers/delta_fl/{place.pair}.yaml", f"--data.root={place.root / data}"]
    if data == "sent140":
        options.append(f"--data.glove_root={place.root / 'glove'}")
    return [*options, *shlex.split(SMALL[place.pair] if place.scale == "small" else "")]


def start(place: Place, sweep: Sweep, options: Sequence[str] = ()) -> int:
    """Train by ``pfl sweep``, which skips finished runs; returns its exit code.

    Args:
        place: The pair.
        sweep: What to train.
        options: More options of ``pfl fit``.
    """
    command = [sys.executable, "-m", "pfl_lightning", "sweep", "--out", str(place.folder), "--jobs", str(place.jobs)]
    own = shlex.split(FEDAVG.get(place.pair, "")) if sweep.method == "fedavg" else []
    command += ["--seeds", *map(str, place.seeds), *sweep.words, "--", *fit_options(place), *own, *options]
    return subprocess.run(command).returncode


def curves(place: Place, sweeps: Sequence[Sweep]) -> dict[str, Curve]:
    """Train all runs of some sweeps, and read them: a curve for each folder of a sweep, by its name.

    Raises:
        SystemExit: If a run fails.
    """
    for sweep in sweeps:
        if code := start(place, sweep):
            raise SystemExit(code)
    names = [name for sweep in sweeps for name in sweep.names]
    found = {name: [newest(place.folder / name / f"seed_{seed}") for seed in place.seeds] for name in names}
    return {name: Curve([read_run(folder) for folder in folders], "global") for name, folders in found.items()}


def newest(folder: Path) -> Path:
    """The newest run below a folder."""
    return max(folder.glob("*/version_*"), key=lambda version: int(version.name.removeprefix("version_")))
