"""The runs behind a table or figure: made by ``pfl sweep``, which skips finished ones, and read again."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.console import Console
from rich.markdown import Markdown

from pfl_lightning.cli import main
from pfl_lightning.cli.planning import combinations, folder_name, has_begun, values_by_key
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.report import RunRecord, curves_of, read_run
from pfl_lightning.runs.experiment import Experiment
from reproduction.curves import keep

Runs = Mapping[str, Sequence[RunRecord | None]]  # by folder, one per seed; None for one without an evaluation

CONFIGS = Path(__file__).parents[2] / "configs"


class Sweep(NamedTuple):
    """Some methods, with what they alone are told.

    Attributes:
        methods: Names of their files in ``configs/methods``.
        vary: Values of settings by their keys, such as ``model.local.lr``; all combinations run.
        options: More options of ``pfl fit``.
        folder: Folder of these runs in that of all.
    """

    methods: Sequence[str]
    vary: Mapping[str, Sequence[Any]] = MappingProxyType({})
    options: Sequence[str] = ()
    folder: str = ""

    @property
    def names(self) -> list[str]:
        """The folders that ``pfl sweep`` makes: for each method, one for each combination of what varies."""
        grid = combinations(values_by_key(self.varied))
        folders = [folder_name(method, values) for method, values in product(self.methods, grid)]
        return [f"{self.folder}/{name}" if self.folder else name for name in folders]

    @property
    def settings(self) -> str:
        """What varies, of a single combination, as a text."""
        return ", ".join(self.names[0].rpartition("/")[2].split(",")[1:])

    def singles(self) -> list["Sweep"]:
        """Each method with each combination of what varies, by itself."""
        grids = [{key: [value] for key, value in values.items()} for values in combinations(self.vary)]
        return [self._replace(methods=[method], vary=vary) for method, vary in product(self.methods, grids)]

    @property
    def varied(self) -> list[str]:
        """What varies, as ``pfl sweep`` is told: ``model.local.lr=0.1,0.03``."""
        return [f"{key}={','.join(map(str, values))}" for key, values in self.vary.items()]


class Place(NamedTuple):
    """Where some runs are, and what they share.

    Attributes:
        folder: Folder of the runs.
        seeds: Their seeds.
        jobs: Number of runs at the same time.
        options: Options of ``pfl fit``, such as ``--config=FILE``; a method's own come after them.
    """

    folder: Path
    seeds: Sequence[int]
    jobs: int = 1
    options: Sequence[str] = ()

    def seed_folders(self, name: str) -> list[Path]:
        """The folder of each seed."""
        return [self.folder / name / f"seed_{seed}" for seed in self.seeds]


def start(place: Place, sweep: Sweep) -> int:
    """Train by ``pfl sweep``; returns its exit code, which is not 0 if a run failed."""
    methods = [f"{CONFIGS}/methods/{name}.yaml" for name in sweep.methods]
    command = [sys.executable, "-m", "pfl_lightning", "sweep", "--out", str(place.folder / sweep.folder)]
    command += ["--jobs", str(place.jobs), "--seeds", *map(str, place.seeds), "--methods", *methods]
    command += [*(f"--vary={word}" for word in sweep.varied), "--", *place.options, *sweep.options]
    tools = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": tools}  # some runs are of classes that are experiments of ours
    return subprocess.run(command, env=environment).returncode


def train(place: Place, sweeps: Iterable[Sweep], may_diverge: bool = False) -> Runs:
    """Train all runs of some sweeps, and read them by their folders.

    Args:
        place: Where.
        sweeps: The runs.
        may_diverge: Whether a run that diverges is an answer, too; it has to come as far as a folder of its own, which
            it does not without its data.

    Raises:
        SystemExit: If a run fails.
    """
    names: list[str] = []
    for sweep in sweeps:
        code = start(place, sweep)
        folders = [folder for name in sweep.names for folder in place.seed_folders(name)]
        if code and not (may_diverge and all(map(has_begun, folders))):
            raise SystemExit(code)
        names += sweep.names
    return {name: [newest(folder) for folder in place.seed_folders(name)] for name in names}


def newest(folder: Path) -> RunRecord | None:
    """The newest run below the folder of a seed; None if there is none, or none with an evaluation."""
    versions = folder.glob("*/version_*")
    path = max(versions, key=lambda version: int(version.name.removeprefix("version_")), default=folder)
    try:
        return read_run(path)
    except PflError:
        return None


def is_finished(run: RunRecord | None) -> bool:
    """Whether a run has done its rounds."""
    return run is not None and bool(run.rounds[-1] >= run.settings["trainer.max_steps"])


def compare(place: Place, runs: Sequence[RunRecord], name: str) -> None:
    """Draw and tabulate some runs by ``pfl compare``, in a folder beside them, and keep their curves."""
    main(["compare", *(str(run.folder) for run in runs), "--out", str(place.folder / f"{name}_comparison")])
    keep(curves_of(runs), place.folder / f"{name}.csv")


def publish(place: Place, name: str, text: str) -> None:
    """Write a text in Markdown beside the runs, and print it."""
    (place.folder / f"{name}.md").write_text(text)
    Console().print(Markdown(text))


def split_data(options: Sequence[str]) -> FederatedDataModule:
    """The data of runs, split among the clients.

    Args:
        options: Options of ``pfl fit``, the first of which is the paper's settings.
    """
    data = Experiment.from_settings(options[0], "--config=methods/fedavg", *options[1:]).data
    data.setup()
    return data
