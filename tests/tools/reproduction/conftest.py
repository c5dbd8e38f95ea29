import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from reproduction import runs
from reproduction.runs import Place, start

from pfl_lightning.cli.sweep import sweep_command


@pytest.fixture
def place(tmp_path):
    """Makes the place of a pair's runs, with the options that a function gives them."""

    def make(pair, options=lambda place: (), scale="small", seeds=(1,)):
        found = Place(pair, scale, Path("files"), tmp_path, seeds)
        return found._replace(options=options(found))

    return make


@pytest.fixture
def plan(monkeypatch):
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

    monkeypatch.setattr(sys, "argv", ["pfl"])
    monkeypatch.setattr("pfl_lightning.cli.sweep.Sweep.execute", lambda self, run: planned.append(run) or run.folder)
    monkeypatch.setattr(runs.subprocess, "run", sweep)
    return of
