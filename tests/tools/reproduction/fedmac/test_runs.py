import pytest
from reproduction.fedmac import accuracy, dense, sparse
from reproduction.fedmac.items import PAPER
from reproduction.fedmac.runs import METHODS, RATES, fit_options, sweep
from reproduction.fedmac.sparse import WEIGHT

from pfl_lightning.settings.values import class_name


class AllPlannedError(Exception):
    """All runs of a figure are planned."""


@pytest.fixture
def figure(plan, place, monkeypatch):
    """Plans the runs of a figure, and gives their models' settings by folder."""
    planned = {}

    def end(place, sweeps):
        planned.update(plan(place, *sweeps))
        raise AllPlannedError

    for module in (accuracy, dense, sparse):
        monkeypatch.setattr(module, "trained", end)

    def of(claims, pair="mnist_dnn"):
        with pytest.raises(AllPlannedError):
            claims(place(pair, fit_options))
        return planned

    return of


def arguments(settings):
    return settings["model"]["init_args"]


@pytest.mark.parametrize("pair", RATES)
def test_every_pair_is_a_run(pair, plan, place):
    ((_, settings),) = plan(place(pair, fit_options), sweep(place(pair), "fedmac")).items()
    assert settings["trainer"]["max_steps"] <= 200
    network = class_name(settings["model"]["init_args"]["network"]["class_path"])
    assert (network == "LogisticRegression") == pair.endswith("_mlr")
    assert not any("max_steps" in option for option in fit_options(place(pair, scale="full")))


def test_every_pair_is_in_a_table():
    assert {pair for item in PAPER.items.values() for pair in item.pairs} == set(RATES)


def test_table_2_trains_every_method_with_its_rates(figure):
    found = figure(accuracy.table_claims, "synthetic_mlr")
    assert tuple(found) == METHODS
    kinds = [class_name(settings["model"]["class_path"]) for settings in found.values()]
    assert kinds == ["FedAvg", "FedProx", "HeurFedAMP", "PerFedAvg", "PFedMe", "FedMac"]
    mac, maml = arguments(found["fedmac"]), arguments(found["per-fedavg"])
    assert [mac[key] for key in ("lr", "correlation", "copy_lr")] == [0.05, 0.005, 15]
    assert [maml[key] for key in ("inner_lr", "lr")] == [0.02, 0.002]
    assert {(arguments(each)["epochs"], arguments(each)["epoch_steps"]) for each in found.values()} == {(20, 1)}


def test_table_4_prunes_and_tracks_every_method(figure):
    found = figure(sparse.table4_claims)
    assert [name.split(",")[0] for name in found] == list(sparse.METHODS)
    for settings in found.values():
        own = arguments(settings)["sparsity"]
        assert (own["weight"], own["smoothing"], own["prune"]) == (WEIGHT, 0.01, True)
        assert "SparsityTracker" in [class_name(each["class_path"]) for each in settings["trainer"]["callbacks"]]


def test_figure_2_keeps_the_product_of_correlation_and_rate_of_the_copy(figure):
    found = [arguments(settings) for settings in figure(dense.fig2_claims).values()]
    assert [each["epochs"] for each in found] == [5, 10, 20, 40, *[20] * 8]
    assert [each["server_optimizer"]["init_args"]["lr"] for each in found[4:7]] == [1, 2, 4]
    assert [each["correlation"] for each in found[7:]] == list(dense.CORRELATIONS)
    assert [each["correlation"] * each["copy_lr"] for each in found] == pytest.approx([0.075] * len(found))


def test_no_two_curves_of_figure_2_are_of_the_same_settings(plan, place, monkeypatch):
    drawn = []

    def end(*args):
        raise AllPlannedError

    def planned(place, sweeps):
        return {name: [arguments(settings)] for name, settings in plan(place, *sweeps).items()}

    monkeypatch.setattr(dense, "trained", planned)
    monkeypatch.setattr(dense, "compare", lambda place, runs, name: drawn.append([repr(each) for each in runs]))
    monkeypatch.setattr(dense, "show", end)
    with pytest.raises(AllPlannedError):
        dense.fig2_claims(place("mnist_dnn", fit_options))
    assert [len(runs) for runs in drawn] == [len({*runs}) for runs in drawn] == [4, 3, 5]
