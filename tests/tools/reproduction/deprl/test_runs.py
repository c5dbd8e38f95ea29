import pytest
from reproduction.deprl import speedup
from reproduction.deprl.runs import ALPHAS, DATA, GOSSIP, GRAPHS, SERVER, SMALL, fit_options, folder, sweep

from pfl_lightning.settings.values import class_name

SIZES = {("fashion_mnist", "small"): (32, 40), ("cifar10", "small"): (16, 20)}  # clients and rounds


def own(settings):
    return settings["model"]["init_args"]


@pytest.mark.parametrize(
    ("data", "scale"),
    [*((name, "full") for name in DATA), *((name, "small") for name in SMALL), ("fashion_mnist", "two_cores")],
    ids=str,
)
def test_all_data_are_trained_on_with_the_papers_optimizer(data, scale, plan, place):
    here = place(data, fit_options, scale)
    (settings,) = plan(here, sweep(here, "dispfl", ["Complete"], [0.1])).values()
    model, rounds = own(settings), settings["trainer"]["max_steps"]
    assert [model[key] for key in ("lr", "lr_decay", "momentum", "weight_decay")] == [0.01, 0.96, 0.9, 1e-5]
    assert model["clip_norm"] == (10.0 if scale == "full" else None)
    assert (settings["data"]["init_args"]["num_clients"], rounds) == SIZES.get((data, scale), (128, 200))
    assert model["drop_rounds"] == rounds
    assert model["batch_size"] == (128 if data == "cifar100" else 16)


def test_every_method_spends_its_epochs_as_in_the_paper(plan, place):
    here = place("fashion_mnist", fit_options)
    found = plan(here, *(sweep(here, method, ["Ring"], [0.1]) for method in (*GOSSIP, *SERVER)))
    keys = ("epochs", "head_epochs", "personal_epochs")
    spent = {name.split(",")[0]: [own(settings).get(key) for key in keys] for name, settings in found.items()}
    plain, heads, second = [2, None, None], [1, 2, None], [2, None, 1]
    assert spent == {
        "d-psgd": plain,
        "dispfl": plain,
        "deprl": heads,
        "fedavg": plain,
        "fedrep": heads,
        "ditto": second,
        "fedrod": second,
    }


@pytest.mark.parametrize("method", ["deprl", "fedavg"])
def test_the_runs_of_a_grid_are_where_they_are_looked_for(method, plan, place):
    here = place("fashion_mnist", fit_options)
    graphs, alphas = (GRAPHS, ALPHAS[:1]) if method in GOSSIP else (("Ring",), ALPHAS[:2])
    wanted = {folder(method, graph, alpha): (graph, alpha) for graph in graphs for alpha in alphas}
    found = plan(here, sweep(here, method, alphas=alphas))
    assert found.keys() == wanted.keys()
    for name, (graph, alpha) in wanted.items():
        assert found[name]["data"]["init_args"]["partition"]["init_args"]["alpha"] == alpha
        assert method == "fedavg" or class_name(own(found[name])["topology"]["class_path"]) == graph


@pytest.mark.parametrize(("data", "scale"), [("fashion_mnist", "small"), ("harbox", "full")])
def test_speed_ups_are_of_whole_epochs_that_last_as_long_as_there_are_samples(data, scale, plan, place):
    here = place(data, fit_options, scale)
    vary = {"data.num_clients": [4, 32]}
    found = plan(here, sweep(here, "fedrep", alphas=[0.1], vary=vary, options=speedup.options(here, "fedrep")))
    assert set(found) == {folder("fedrep", "Ring", 0.1, {"data.num_clients": clients}) for clients in (4, 32)}
    for settings in found.values():
        clients = settings["data"]["init_args"]
        assert (clients["time_per"], clients["speeds"]["init_args"]["seconds"]) == ("sample", 5e-5)
        assert own(settings)["epoch_steps"] is None
