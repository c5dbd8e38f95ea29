from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from reproduction import runs
from reproduction.runs import Place, start

from pfl_lightning.cli.fit import SettingsCLI
from pfl_lightning.cli.sweep import sweep_command
from pfl_lightning.runs.resume import plain


@pytest.fixture
def place(tmp_path):
    """Makes the place of a pair's runs, with the options that a function gives them."""

    def make(pair, options=lambda place: (), scale="small", seeds=(1,)):
        found = Place(pair, scale, Path("files"), tmp_path, seeds)
        return found._replace(options=options(found))

    return make


@pytest.fixture(scope="session")
def settings_of():
    """Reads the options of ``pfl fit`` by one parser, which takes a while to make."""
    parser = SettingsCLI([]).parser
    return lambda words: plain(parser, parser.parse_args(words))


@pytest.fixture
def plan(monkeypatch, settings_of):
    """The settings of the runs of some sweeps by folder; each run is where it is looked for, and none is started."""
    planned = []

    def sweep(command, env):
        sweep_command(command[command.index("sweep") + 1 :])
        return SimpleNamespace(returncode=0)

    def of(place, *sweeps):
        planned.clear()
        for each in sweeps:
            assert start(place, each) == 0
        names = [name for each in sweeps for name in each.names]
        assert [run.folder for run in planned] == [folder for n in names for folder in runs.seed_folders(place, n)]
        return {run.folder.parent.name: run.settings for run in planned}

    monkeypatch.setattr("pfl_lightning.cli.planning.settings_of", settings_of)
    monkeypatch.setattr("pfl_lightning.cli.sweep.Sweep.execute", lambda self, run: planned.append(run) or run.folder)
    monkeypatch.setattr(runs.subprocess, "run", sweep)
    return of


@pytest.fixture
def write_run(tmp_path):
    """Writes the files of a run, with rows of its tables after the names of their columns."""

    def write(folder, seed, rounds, metrics, clients):
        folder = tmp_path / folder / f"seed_{seed}/FedRep-FEMNIST/version_0"
        folder.mkdir(parents=True)
        settings = {"seed_everything": seed, "model": {"class_path": "FedRep"}, "data": {"class_path": "FEMNIST"}}
        label = {"method": "FedRep", "name": "FedRep", "doubling": None, "suffixes": {}, "is_baseline": False}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings | {"trainer": {"max_steps": rounds}}))
        (folder / "label.yaml").write_text(yaml.safe_dump(label))
        columns = ("round", "split", "model", "client", "samples", "correct", "loss")
        for name, rows in (("metrics.csv", metrics), ("clients.csv", [columns, *clients])):
            (folder / name).write_text("".join(",".join(map(str, row)) + "\n" for row in rows))

    return write
