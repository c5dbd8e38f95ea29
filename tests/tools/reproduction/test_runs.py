import subprocess

import pytest
from reproduction import runs
from reproduction.runs import CONFIGS, Experiment, Sweep

from pfl_lightning.settings import class_name

DIGITS = f"--config={CONFIGS}/data/digits.yaml"


def test_runs_are_found_where_the_sweep_puts_them(planned, tmp_path):
    vary = {"model.lr": (0.1, 1e-5), "data.eval_train": (True,), "model.network.hidden": ([8, 16], [4])}
    sweep = Sweep(("fedavg", "fedrep"), vary)
    runs.start(Experiment(tmp_path, [DIGITS], [3, 1]), sweep)
    assert len(planned) == 16
    assert [run.folder for run in planned] == [
        tmp_path / name / f"seed_{seed}" for name in sweep.names for seed in (3, 1)
    ]


def test_a_sweep_without_variations_has_a_folder_for_each_method():
    assert Sweep(("fedavg", "fedrep")).names == ["fedavg", "fedrep"]


def test_what_a_sweep_alone_is_told_comes_after_what_all_are_told_and_after_its_method(planned, tmp_path):
    together = Experiment(tmp_path, [DIGITS, "--model.lr=0.3", "--model.epochs=2"], [1])
    runs.start(together, Sweep(("fedprox",), options=["--model.lr=0.5", "--model.proximity=2"]))
    (model,) = (run.settings["model"] for run in planned)
    assert class_name(model["class_path"]) == "FedProx"
    assert [model["init_args"][key] for key in ("lr", "epochs", "proximity")] == [0.5, 2, 2.0]


def test_a_failed_sweep_ends_the_command_with_its_code(monkeypatch, tmp_path):
    monkeypatch.setattr(runs.subprocess, "run", lambda command, env: subprocess.CompletedProcess(command, 3))
    with pytest.raises(SystemExit) as stop:
        runs.trained(Experiment(tmp_path, [DIGITS], [1]), [Sweep(("fedavg",))])
    assert stop.value.code == 3


def test_the_newest_run_is_read(tmp_path):
    for version in (2, 10, 9):
        (tmp_path / f"FedAvg-FEMNIST/version_{version}").mkdir(parents=True)
    assert runs.newest(tmp_path).name == "version_10"
