from pathlib import Path

import pytest
import reproduce
from reproduction.fedmac import accuracy, dense, sparse
from reproduction.fedmac.runs import PAIRS, experiment, sweep
from reproduction.fedmac.sparse import WEIGHT
from reproduction.runs import Place, start

from pfl_lightning.settings import class_name


class AllPlannedError(Exception):
    """All runs of a figure are planned."""


@pytest.fixture
def plan(planned, tmp_path, monkeypatch):
    """Plans the runs of a figure, and gives their models' settings by folder."""

    def end(place, sweeps):
        for each in sweeps:
            start(experiment(place), each)
        raise AllPlannedError

    for module in (accuracy, dense, sparse):
        monkeypatch.setattr(module, "runs", end)

    def of(claims, pair="mnist_dnn"):
        with pytest.raises(AllPlannedError):
            claims(Place(pair, "small", Path("files"), tmp_path, [1], 1))
        assert all(run.folder.name == "seed_1" for run in planned)
        return {run.folder.parent.name: run.settings for run in planned}

    return of


def arguments(settings):
    return settings["model"]["init_args"]


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_is_a_run_at_both_scales(pair, planned, tmp_path):
    for scale in ("small", "full"):
        place = Place(pair, scale, Path("files"), tmp_path, [1], 1)
        start(experiment(place), sweep(place, "fedmac"))
    small, full = (run.settings for run in planned)
    assert small["trainer"]["max_steps"] < full["trainer"]["max_steps"]
    network = class_name(full["model"]["init_args"]["network"]["class_path"])
    assert (network == "LogisticRegression") == pair.endswith("_mlr")


def test_table_2_trains_every_method_with_its_rates(plan):
    found = plan(accuracy.table_claims, "synthetic_mlr")
    assert {name: class_name(settings["model"]["class_path"]) for name, settings in found.items()} == {
        "fedavg": "FedAvg",
        "fedprox": "FedProx",
        "heurfedamp": "HeurFedAMP",
        "per-fedavg": "PerFedAvg",
        "pfedme": "PFedMe",
        "fedmac": "FedMac",
    }
    mac, maml = arguments(found["fedmac"]), arguments(found["per-fedavg"])
    assert [mac[key] for key in ("lr", "correlation", "copy_lr")] == [0.05, 0.005, 15]
    assert [maml[key] for key in ("inner_lr", "lr")] == [0.02, 0.002]
    assert {(arguments(each)["epochs"], arguments(each)["epoch_steps"]) for each in found.values()} == {(20, 1)}


def test_table_4_prunes_and_tracks_every_method(plan):
    found = plan(sparse.table4_claims)
    assert [name.split(",")[0] for name in found] == list(sparse.METHODS)
    for settings in found.values():
        own = arguments(settings)["sparsity"]
        assert (own["weight"], own["smoothing"], own["prune"]) == (WEIGHT, 0.01, True)
        assert "SparsityTracker" in [class_name(each["class_path"]) for each in settings["trainer"]["callbacks"]]


def test_figure_2_keeps_the_product_of_correlation_and_rate_of_the_copy(plan):
    found = [arguments(settings) for settings in plan(dense.fig2_claims).values()]
    assert [each["epochs"] for each in found] == [5, 10, 20, 40, *[20] * 8]
    assert [each["server_optimizer"]["init_args"]["lr"] for each in found[4:7]] == [1, 2, 4]
    assert [each["correlation"] for each in found[7:]] == list(dense.CORRELATIONS)
    assert [each["correlation"] * each["copy_lr"] for each in found] == pytest.approx([0.075] * len(found))


def test_a_pair_that_a_table_does_not_have_gets_one_line(capsys):
    for figure, line in (("fig2", "allowed: mnist_dnn"), ("fig1", "allowed: none")):
        with pytest.raises(SystemExit) as stop:
            reproduce.fedmac(figure, pairs=["cinic10_wrn"])
        assert stop.value.code == 2
        (shown,) = capsys.readouterr().err.splitlines()
        assert shown.endswith(f"pairs: cinic10_wrn is not possible for {figure}; {line}")
