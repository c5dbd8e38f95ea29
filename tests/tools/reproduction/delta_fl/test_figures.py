import subprocess
import sys
from pathlib import Path

import pytest
from reproduction.delta_fl import figures, runs, search
from reproduction.delta_fl.runs import Place, Sweep

from pfl_lightning.cli.sweep import sweep_command
from pfl_lightning.settings import class_name


class Done:
    """A process that has ended well."""

    returncode = 0


@pytest.fixture
def planned(monkeypatch):
    """The runs that would be started, instead of starting them."""
    found = []
    monkeypatch.setattr(sys, "argv", ["pfl"])
    monkeypatch.setattr("pfl_lightning.cli.sweep.Sweep.execute", lambda self, run: found.append(run) or run.folder)
    monkeypatch.setattr(
        runs.subprocess, "run", lambda command: sweep_command(command[command.index("sweep") + 1 :]) or Done()
    )
    return found


def place(folder, pair="femnist_linear", scale="small"):
    return Place(pair, scale, Path("files"), folder, [1], 1)


@pytest.mark.parametrize("pair", runs.PAIRS)
def test_every_pair_is_a_run_at_both_scales(pair, planned, tmp_path):
    for scale in ("small", "full"):
        runs.start(place(tmp_path, pair, scale), figures.HALF)
    small, full = (run.settings for run in planned)
    for settings in (small, full):
        data = settings["data"]["init_args"]
        assert (data["test_clients"], data["judge_train"], data["val_fraction"]) == (0.5, True, 0.0)
        assert settings["percentile_errors"]["errors"] is True
    assert small["data"]["init_args"]["num_clients"] <= 100 < full["data"]["init_args"]["num_clients"]
    assert small["trainer"]["max_steps"] < full["trainer"]["max_steps"]


def test_runs_are_found_where_the_sweep_puts_them(planned, tmp_path):
    for figure in ("fig17", "algorithm3"):
        planned.clear()
        for sweep in figures.FIGURES[figure].sweeps:
            runs.start(place(tmp_path), sweep)
        names = [name for sweep in figures.FIGURES[figure].sweeps for name in sweep.names]
        assert [run.folder for run in planned] == [tmp_path / name / "seed_1" for name in names]


def test_fedavg_has_its_own_weight_decay(planned, tmp_path):
    for sweep in figures.FIGURES["table2"].sweeps:
        runs.start(place(tmp_path), sweep)
    assert [run.folder.parent.name for run in planned] == [
        "fedavg",
        *(f"delta-fl,conformity={conformity}" for conformity in (0.8, 0.5, 0.1)),
    ]
    models = [run.settings["model"] for run in planned]
    assert [class_name(model["class_path"]) for model in models] == ["FedAvg", *["DeltaFL"] * 3]
    assert [model["init_args"]["weight_decay"] for model in models] == [1e-9, *[1e-7] * 3]
    assert [model["init_args"].get("conformity") for model in models] == [None, 0.8, 0.5, 0.1]


def test_a_failed_sweep_ends_the_command_with_its_code(monkeypatch, tmp_path):
    monkeypatch.setattr(runs.subprocess, "run", lambda command: subprocess.CompletedProcess(command, 3))
    with pytest.raises(SystemExit) as stop:
        runs.curves(place(tmp_path), [figures.HALF])
    assert stop.value.code == 3


def test_the_newest_run_is_read(tmp_path):
    for version in (2, 10, 9):
        (tmp_path / f"FedAvg-FEMNIST/version_{version}").mkdir(parents=True)
    assert runs.newest(tmp_path).name == "version_10"


def test_learning_rates_are_judged_on_half_of_the_training_devices(planned, tmp_path):
    runs.start(place(tmp_path), Sweep("fedavg", {"lr": search.learning_rates(place(tmp_path))}), [search.HALF])
    assert [run.settings["model"]["init_args"]["lr"] for run in planned] == [0.1, 0.3, 1.0, 3.0, 10.0]
    assert {run.settings["data"]["init_args"]["val_clients"] for run in planned} == {0.5}
