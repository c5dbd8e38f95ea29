import subprocess

import numpy as np
import pytest
from reproduction import runs
from reproduction.runs import CONFIGS, SCALES, Item, Sweep

from pfl_lightning.data import Digits, Dirichlet
from pfl_lightning.settings.values import class_name


def digits(*options):
    return lambda place: [f"--config={CONFIGS}/data/digits.yaml", *options]


def test_runs_are_found_where_the_sweep_puts_them(plan, place):
    vary = {"model.lr": (0.1, 1e-5), "data.eval_train": (True,), "model.network.hidden": ([8, 16],)}
    assert len(plan(place("digits", digits(), seeds=(3, 1)), Sweep(("fedavg", "fedrep"), vary))) == 4
    assert Sweep(("fedavg", "fedrep")).names == ["fedavg", "fedrep"]


def test_what_a_sweep_alone_is_told_comes_after_what_all_are_told_and_after_its_method(plan, place):
    together = place("digits", digits("--model.lr=0.3", "--model.epochs=2"))
    ((_, settings),) = plan(together, Sweep(("fedprox",), options=["--model.lr=0.5", "--model.proximity=2"])).items()
    assert class_name(settings["model"]["class_path"]) == "FedProx"
    assert [settings["model"]["init_args"][key] for key in ("lr", "epochs", "proximity")] == [0.5, 2, 2.0]


def test_a_failed_sweep_ends_the_command_with_its_code(monkeypatch, place):
    monkeypatch.setattr(runs.subprocess, "run", lambda command, env: subprocess.CompletedProcess(command, 3))
    with pytest.raises(SystemExit) as stop:
        runs.trained(place("digits", digits()), [Sweep(("fedavg",))])
    assert stop.value.code == 3


def test_a_run_may_diverge_but_has_to_begin(monkeypatch, place):
    there, sweep = place("digits", digits(), seeds=(1, 2)), Sweep(("fedavg",))
    monkeypatch.setattr(runs.subprocess, "run", lambda command, env: subprocess.CompletedProcess(command, 1))
    first, second = runs.seed_folders(there, "fedavg")
    (first / "FedAvg-Digits/version_0").mkdir(parents=True)
    second.mkdir()
    with pytest.raises(SystemExit) as stop:
        runs.tried(there, sweep)
    assert stop.value.code == 1
    (second / "FedAvg-Digits/version_0").mkdir(parents=True)
    runs.tried(there, sweep)


def test_the_newest_run_is_read(tmp_path):
    for version in (2, 10, 9):
        (tmp_path / f"FedAvg-FEMNIST/version_{version}").mkdir(parents=True)
    assert runs.newest(tmp_path).name == "version_10"


def test_an_item_has_pairs_of_its_own_at_a_scale_if_it_names_some():
    same, fewer = Item(list, ("a", "b")), Item(list, ("a", "b"), (), ("b",))
    assert [same.pairs_at(scale) for scale in SCALES] == [("a", "b"), (), ("a", "b")]
    assert [fewer.pairs_at(scale) for scale in SCALES] == [(), ("b",), ("a", "b")]


def test_data_are_split_as_the_options_of_the_runs_say():
    options = digits("--data.num_clients=7", "--data.partition=Dirichlet", "--data.partition.alpha=0.3", "--model.lr=1")
    wanted = Digits(num_clients=7, partition=Dirichlet(alpha=0.3))
    wanted.setup()
    found = runs.split_data(options(None)).class_counts()
    assert found.keys() == wanted.class_counts().keys()
    assert all(np.array_equal(found[split], counts) for split, counts in wanted.class_counts().items())
