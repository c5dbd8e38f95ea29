from pathlib import Path

import pytest
from reproduction.deprl import speedup
from reproduction.deprl.runs import ALPHAS, DATA, GOSSIP, GRAPHS, SERVER, SMALL, experiment, folder, sweep
from reproduction.runs import Place, start

from pfl_lightning.settings import class_name


@pytest.fixture
def plan(planned, tmp_path):
    """Plans the runs of a method, and gives their settings by folder."""

    def of(method, data="fashion_mnist", scale="small", alphas=(0.1,), **grid):
        place = Place(data, scale, Path("files"), tmp_path, [1], 1)
        start(experiment(place), sweep(place, method, alphas=alphas, **grid))
        return {run.folder.parent.name: run.settings for run in planned}

    return of


def own(settings):
    return settings["model"]["init_args"]


SCALES = [*((name, "full") for name in DATA), *((name, "small") for name in SMALL)]


@pytest.mark.parametrize(("data", "scale"), SCALES, ids=str)
def test_all_data_are_trained_on_with_the_papers_optimizer(data, scale, plan):
    (settings,) = plan("dispfl", data, scale, graphs=["Complete"]).values()
    model, clients, rounds = (
        own(settings),
        settings["data"]["init_args"]["num_clients"],
        settings["trainer"]["max_steps"],
    )
    assert [model[key] for key in ("lr", "lr_decay", "momentum", "weight_decay")] == [0.01, 0.96, 0.9, 1e-5]
    assert model["clip_norm"] == (10.0 if scale == "full" else None)
    sizes = {("fashion_mnist", "small"): (32, 40), ("cifar10", "small"): (16, 20)}
    assert (clients, rounds) == sizes.get((data, scale), (128, 200))
    assert model["drop_rounds"] == rounds
    assert model["batch_size"] == (128 if data == "cifar100" else 16)


@pytest.mark.parametrize("method", [*GOSSIP, *SERVER])
def test_every_method_spends_its_epochs_as_in_the_paper(method, plan):
    (settings,) = plan(method, graphs=["Ring"]).values()
    found = {key: own(settings)[key] for key in ("epochs", "head_epochs", "personal_epochs") if key in own(settings)}
    assert found == {
        "deprl": {"epochs": 1, "head_epochs": 2},
        "fedrep": {"epochs": 1, "head_epochs": 2},
        "ditto": {"epochs": 2, "personal_epochs": 1},
        "fedrod": {"epochs": 2, "personal_epochs": 1},
    }.get(method, {"epochs": 2})


@pytest.mark.parametrize("method", ["deprl", "fedavg"])
def test_the_runs_of_a_grid_are_where_they_are_looked_for(method, plan):
    graphs = GRAPHS if method in GOSSIP else ("Ring",)
    wanted = {folder(method, graph, alpha): (graph, alpha) for graph in graphs for alpha in ALPHAS[:2]}
    found = plan(method, alphas=ALPHAS[:2])
    assert found.keys() == wanted.keys()
    for name, (graph, alpha) in wanted.items():
        assert found[name]["data"]["init_args"]["partition"]["init_args"]["alpha"] == alpha
        assert method == "fedavg" or class_name(own(found[name])["topology"]["class_path"]) == graph


@pytest.mark.parametrize(("data", "scale"), [("fashion_mnist", "small"), ("harbox", "full")])
def test_speed_ups_are_of_whole_epochs_that_last_as_long_as_there_are_samples(data, scale, plan, tmp_path):
    place = Place(data, scale, Path("files"), tmp_path, [1], 1)
    vary = {"data.num_clients": [4, 32]}
    found = plan("fedrep", data, scale, vary=vary, options=speedup.options(place))
    assert set(found) == {folder("fedrep", "Ring", 0.1, {"data.num_clients": clients}) for clients in (4, 32)}
    for settings in found.values():
        clients = settings["data"]["init_args"]
        assert clients["time_per"] == "sample"
        assert clients["speeds"]["init_args"]["seconds"] == 5e-5
        assert own(settings)["epoch_steps"] is None
