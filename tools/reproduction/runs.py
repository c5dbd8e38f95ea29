"""The runs behind a table or figure: made by ``pfl sweep``, which skips finished ones, and read again."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from rich.console import Console
from rich.markdown import Markdown

from pfl_lightning.cli import main
from pfl_lightning.cli.planning import folder_name, has_begun, shown_keys, values_by_key
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.report import RunRecord, curves_of, read_run
from pfl_lightning.runs.experiment import Experiment
from reproduction.claims import Claim
from reproduction.curves import keep

Scale = Literal["small", "two_cores", "full"]

SCALES: tuple[Scale, ...] = get_args(Scale)
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
    """Where some runs are, and what they share.

    Attributes:
        pair: The data set, or the pair of data and network.
        scale: The scale.
        root: Folder with a folder of files for each data set.
        folder: Folder of the runs.
        seeds: Their seeds.
        jobs: Number of runs at the same time.
        options: Options of ``pfl fit``, such as ``--config=FILE``; a method's own come after them.
    """

    pair: str
    scale: Scale
    root: Path
    folder: Path
    seeds: Sequence[int]
    jobs: int = 1
    options: Sequence[str] = ()


class Item(NamedTuple):
    """A table or figure of a paper.

    Attributes:
        check: Makes its runs for a pair, and checks the claims about them; a search makes no claims.
        pairs: The pairs that it shows at full scale; none if it is not about pairs.
        small: Those at small scale, if they are others.
        two_cores: Those at the scale of two cores.
        scales: The scales at which it can run.
        seeds: The seeds, if they are not the paper's.
    """

    check: Callable[[Place], list[Claim]]
    pairs: Sequence[str] = ()
    small: Sequence[str] | None = None
    two_cores: Sequence[str] = ()
    scales: Sequence[Scale] = ("small", "full")
    seeds: Sequence[int] | None = None

    def pairs_at(self, scale: Scale) -> Sequence[str]:
        """The pairs at a scale."""
        small = self.pairs if self.small is None else self.small
        return {"small": small, "two_cores": self.two_cores, "full": self.pairs}[scale]


class Paper(NamedTuple):
    """What can be reproduced of a paper.

    Attributes:
        items: Its tables and figures.
        seeds: The usual seeds by scale.
        options: Options of ``pfl fit`` for all runs of a pair.
    """

    items: Mapping[str, Item]
    seeds: Mapping[Scale, Sequence[int]]
    options: Callable[[Place], Sequence[str]] = lambda place: ()


def start(place: Place, sweep: Sweep) -> int:
    """Train by ``pfl sweep``; returns its exit code, which is not 0 if a run failed."""
    methods = [f"{CONFIGS}/methods/{name}.yaml" for name in sweep.methods]
    command = [sys.executable, "-m", "pfl_lightning", "sweep", "--out", str(place.folder), "--jobs", str(place.jobs)]
    command += ["--seeds", *map(str, place.seeds), "--methods", *methods, *(f"--vary={word}" for word in sweep.varied)]
    tools = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": tools}  # some runs are of classes that are experiments of ours
    return subprocess.run([*command, "--", *place.options, *sweep.options], env=environment).returncode


def tried(place: Place, sweep: Sweep) -> None:
    """Train by ``pfl sweep`` what may diverge, which is an answer, too.

    Raises:
        SystemExit: If a run does not even come as far as a folder of its own, as without its data.
    """
    code = start(place, sweep)
    folders = [seed for name in sweep.names for seed in seed_folders(place, name)]
    if not all(map(has_begun, folders)):
        raise SystemExit(code)


def trained(place: Place, sweeps: Sequence[Sweep]) -> dict[str, list[RunRecord]]:
    """Train all runs of some sweeps, and read them: for each folder of a sweep, one run per seed.

    Raises:
        SystemExit: If a run fails.
    """
    for sweep in sweeps:
        if code := start(place, sweep):
            raise SystemExit(code)
    names = [name for sweep in sweeps for name in sweep.names]
    return {name: [read_run(newest(seed)) for seed in seed_folders(place, name)] for name in names}


def found_runs(place: Place, name: str) -> list[RunRecord | None]:
    """The runs in a folder of a sweep, one per seed; None for one that is not there or has no evaluation."""
    found: list[RunRecord | None] = []
    for folder in seed_folders(place, name):
        try:
            found.append(read_run(newest(folder)))
        except (PflError, ValueError):  # a run without results, or not even a folder
            found.append(None)
    return found


def finished_runs(place: Place, name: str) -> list[RunRecord]:
    """The same if all of them have done their rounds; otherwise nothing."""
    runs = [run for run in found_runs(place, name) if run is not None and is_finished(run)]
    return runs if len(runs) == len(place.seeds) else []


def is_finished(run: RunRecord) -> bool:
    """Whether a run has done its rounds."""
    return bool(run.rounds[-1] >= run.settings["trainer.max_steps"])


def seed_folders(place: Place, name: str) -> list[Path]:
    """The folder of each seed."""
    return [place.folder / name / f"seed_{seed}" for seed in place.seeds]


def newest(folder: Path) -> Path:
    """The newest run below the folder of a seed."""
    return max(folder.glob("*/version_*"), key=lambda version: int(version.name.removeprefix("version_")))


def over_all_samples(run: RunRecord, split: str, model: str) -> list[float]:
    """Share of correct predictions among all samples of a split, at each evaluation."""
    each = [run.clients[split, model, int(at)] for at in run.rounds]
    return [float(clients.correct.sum() / clients.samples.sum()) for clients in each]


def compare(place: Place, runs: Iterable[RunRecord], name: str) -> None:
    """Draw and tabulate some runs by ``pfl compare``, in a folder beside them, and keep their curves."""
    runs = [*runs]
    main(["compare", *(str(run.folder) for run in runs), "--out", str(place.folder / f"{name}_comparison")])
    keep(curves_of(runs), place.folder / f"{name}.csv")


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
        options: Options of ``pfl fit``, the first of which is the paper's settings.
    """
    data = Experiment.from_settings(options[0], "--config=methods/fedavg", *options[1:]).data
    data.setup()
    return data
