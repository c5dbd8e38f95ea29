import subprocess

import numpy as np
import pytest
from reproduction import runs
from reproduction.runs import CONFIGS, Sweep

from pfl_lightning.data import Digits, Dirichlet


def test_runs_are_in_the_folders_that_a_sweep_makes():
    vary = {"model.local.lr": (0.1, 1e-5), "data.eval_train": (True,), "model.network.hidden": ([8, 16],)}
    names = Sweep(("fedavg", "fedrep"), vary).names
    assert names[:2] == [f"fedavg,lr={lr},eval_train=true,hidden=[8,16]" for lr in (0.1, 1e-05)]
    assert Sweep(("fedavg", "fedrep"), folder="f").names == ["f/fedavg", "f/fedrep"]
    singles = Sweep(("fedavg", "fedrep"), vary).singles()
    assert [single.names for single in singles] == [[name] for name in names]
    assert (
        Sweep(["fedavg"], {"model.local.lr": [1], "model.local.epochs": [2]}, folder="f").settings == "lr=1, epochs=2"
    )


def test_what_a_sweep_alone_is_told_comes_after_what_all_are_told(monkeypatch, place):
    commands = []
    monkeypatch.setattr(
        runs.subprocess, "run", lambda command, env: commands.append(command) or subprocess.CompletedProcess(command, 0)
    )
    runs.start(
        place._replace(options=["--a=1"], jobs=2), Sweep(("fedprox",), {"model.local.lr": (1, 2)}, ["--a=2"], "f")
    )
    out = ["--out", str(place.folder / "f"), "--jobs", "2", "--seeds", "1", "2"]
    methods = ["--methods", f"{CONFIGS}/methods/fedprox.yaml", "--vary=model.local.lr=1,2"]
    assert commands[0][3:] == ["sweep", *out, *methods, "--", "--a=1", "--a=2"]


def test_a_failed_sweep_ends_the_command_with_its_code_but_a_run_may_diverge_once_it_has_begun(monkeypatch, place):
    monkeypatch.setattr(runs.subprocess, "run", lambda command, env: subprocess.CompletedProcess(command, 3))
    sweep = Sweep(("fedavg",))
    first, second = place.seed_folders("fedavg")
    (first / "FedAvg-Digits/version_0").mkdir(parents=True)
    for may_diverge in (False, True):
        with pytest.raises(SystemExit) as stop:
            runs.train(place, [sweep], may_diverge)
        assert stop.value.code == 3
    (second / "FedAvg-Digits/version_0").mkdir(parents=True)
    assert runs.train(place, [sweep], may_diverge=True) == {"fedavg": [None, None]}


def test_the_newest_run_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "read_run", lambda folder: folder.name)
    for version in (2, 10, 9):
        (tmp_path / f"FedAvg-FEMNIST/version_{version}").mkdir(parents=True)
    assert runs.newest(tmp_path) == "version_10"


def test_data_are_split_as_the_options_of_the_runs_say():
    options = ["--data.num_clients=7", "--data.partition=Dirichlet", "--data.partition.alpha=0.3", "--model.local.lr=1"]
    wanted = Digits(num_clients=7, partition=Dirichlet(alpha=0.3))
    wanted.setup()
    found = runs.split_data([f"--config={CONFIGS}/data/digits.yaml", *options]).class_counts()
    assert found.keys() == wanted.class_counts().keys()
    assert all(np.array_equal(found[split], counts) for split, counts in wanted.class_counts().items())
