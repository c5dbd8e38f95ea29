"""The runs behind a table or figure: made by ``pfl sweep``, which skips finished ones, and read again."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import yaml
from jsonargparse import ArgumentParser
from rich.console import Console
from rich.markdown import Markdown

from pfl_lightning.cli.compare import compare_command
from pfl_lightning.cli.planning import folder_name, shown_keys, values_by_key
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.report import Run, read_run

Scale = Literal["small", "full"]

CONFIGS = Path(__file__).parents[2] / "configs"


class Sweep(NamedTuple):
    """Some methods, with what they alone are told.

    Attributes:
        methods: Names of their files in ``configs/methods``.
        vary: Values of settings by their keys, such as ``model.lr``; all combinations run.
        options: More options of ``pfl fit``.
    """

    methods: Sequence[str]
    vary: Mapping[str, Sequence[Any]] = MappingProxyType({})
    options: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The folders that ``pfl sweep`` makes: for each method, one for each combination of what varies."""
        varied = values_by_key(self.varied)
        keys = shown_keys(list(varied)).values()
        labels = [
            [f"{key}={value}" for key, value in zip(keys, grid, strict=True)] for grid in product(*varied.values())
        ]
        return [folder_name(method, each) for method, each in product(self.methods, labels)]

    @property
    def varied(self) -> list[str]:
        """What varies, as ``pfl sweep`` is told: ``model.lr=0.1,0.03``."""
        return [f"{key}={','.join(map(str, values))}" for key, values in self.vary.items()]


class Place(NamedTuple):
    """Where the runs of a pair of data and network are, and how they are made.

    Attributes:
        pair: The pair.
        scale: The scale.
        root: Folder with a folder of files for each data set.
        folder: Folder of the runs.
        seeds: Their seeds.
        jobs: Number of runs at the same time.
    """

    pair: str
    scale: Scale
    root: Path
    folder: Path
    seeds: Sequence[int]
    jobs: int


class Experiment(NamedTuple):
    """What the runs of one or more sweeps share.

    Attributes:
        folder: Where they are.
        options: Options of ``pfl fit``, such as ``--config=FILE``; a method's own come after them.
        seeds: Their seeds.
        jobs: Number of runs at the same time.
    """

    folder: Path
    options: Sequence[str]
    seeds: Sequence[int]
    jobs: int = 1


def start(experiment: Experiment, sweep: Sweep) -> int:
    """Train by ``pfl sweep``; returns its exit code, which is not 0 if a run failed."""
    folder, options, seeds, jobs = experiment
    methods = [f"{CONFIGS}/methods/{name}.yaml" for name in sweep.methods]
    command = [sys.executable, "-m", "pfl_lightning", "sweep", "--out", str(folder), "--jobs", str(jobs)]
    command += ["--seeds", *map(str, seeds), "--methods", *methods, *(f"--vary={word}" for word in sweep.varied)]
    tools = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": tools}  # some runs are of classes that are experiments of ours
    return subprocess.run([*command, "--", *options, *sweep.options], env=environment).returncode


def trained(experiment: Experiment, sweeps: Sequence[Sweep]) -> dict[str, list[Run]]:
    """Train all runs of some sweeps, and read them: for each folder of a sweep, one run per seed.

    Raises:
        SystemExit: If a run fails.
    """
    for sweep in sweeps:
        if code := start(experiment, sweep):
            raise SystemExit(code)
    return {name: runs_of(experiment, name) for sweep in sweeps for name in sweep.names}


def runs_of(experiment: Experiment, name: str) -> list[Run]:
    """The runs in a folder of a sweep, one per seed."""
    return [read_run(newest(experiment.folder / name / f"seed_{seed}")) for seed in experiment.seeds]


def found_runs(experiment: Experiment, name: str) -> list[Run | None]:
    """The same; None for a run that is not there, or was stopped before its first evaluation."""
    found: list[Run | None] = []
    for seed in experiment.seeds:
        try:
            found += runs_of(experiment._replace(seeds=[seed]), name)
        except (PflError, ValueError):  # a run without results, or not even a folder
            found.append(None)
    return found


def is_finished(run: Run) -> bool:
    """Whether a run has done its rounds."""
    return bool(run.rounds[-1] >= run.settings["trainer.max_steps"])


def newest(folder: Path) -> Path:
    """The newest run below the folder of a seed."""
    return max(folder.glob("*/version_*"), key=lambda version: int(version.name.removeprefix("version_")))


def compare(place: Place, runs: Iterable[Run], name: str) -> None:
    """Draw and tabulate some runs by ``pfl compare``, in a folder beside them."""
    compare_command([*(str(run.folder) for run in runs), "--out", str(place.folder / f"{name}_comparison")])


def publish(place: Place, name: str, text: str) -> None:
    """Write a text in Markdown beside the runs, and print it."""
    (place.folder / f"{name}.md").write_text(text)
    Console().print(Markdown(text))


def data_options(root: Path, data: str) -> list[str]:
    """Options of ``pfl fit`` that say where the files of a data set are.

    Args:
        root: Folder with a folder of files for each data set.
        data: Name of the data set's folder.
    """
    glove = [f"--data.glove_root={root / 'glove'}"] if data == "sent140" else []
    return [f"--data.root={root / data}", *glove]


def split_data(options: Sequence[str]) -> FederatedDataModule:
    """The data of runs, split among the clients.

    Args:
        options: Options of ``pfl fit``, the first of which is the config with the data.
    """
    parser = ArgumentParser()
    parser.add_subclass_arguments(FederatedDataModule, "data")
    settings = yaml.safe_load(Path(options[0].removeprefix("--config=")).read_text())["data"]
    own = [option for option in options if option.startswith("--data.")]
    data = parser.instantiate_classes(parser.parse_args([f"--data={json.dumps(settings)}", *own])).data
    assert isinstance(data, FederatedDataModule)
    data.setup()
    return data
