import numpy as np
import pytest
from reproduction.delta_fl import items, search
from reproduction.delta_fl.runs import PAIRS, fit_options, with_own_options

from pfl_lightning.settings.values import class_name


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_is_a_run(pair, plan, place):
    (settings,) = plan(place(pair, fit_options), items.HALF).values()
    data = settings["data"]["init_args"]
    assert (data["test_clients"], data["eval_train"], data["val_fraction"]) == (0.5, True, 0.0)
    assert settings["percentile_errors"]["errors"] is True
    assert data["num_clients"] <= 100
    assert settings["trainer"]["max_steps"] <= 200


def test_the_figures_vary_what_the_paper_varies_and_fedavg_has_its_own_weight_decay(plan, place):
    here = place("femnist_linear", fit_options)
    sweeps = [with_own_options(here, sweep) for name in items.SWEEPS for sweep in items.SWEEPS[name]]
    found = plan(here, *sweeps)
    models = {name: settings["model"]["init_args"] for name, settings in found.items()}
    assert {class_name(found[name]["model"]["class_path"]) for name in found if name != "fedavg"} == {"DeltaFL"}
    assert [models[name]["weight_decay"] for name in ("fedavg", "delta-fl,conformity=0.5")] == [1e-9, 1e-7]
    del models["fedavg"]
    assert {(each["conformity"], each["quantile_every"], each["quantile"]) for each in models.values()} == {
        *((conformity, 1, "exact") for conformity in (0.8, 0.5, 0.1)),
        *((0.5, every, "exact") for every in (5, 10)),
        (0.5, 1, "sums"),
    }


def test_learning_rates_are_evaluated_on_half_of_the_training_devices(plan, place, monkeypatch):
    found = {}
    monkeypatch.setattr(search, "tried", lambda place, sweep: found.update(plan(place, sweep)))
    search.search_claims(place("femnist_linear", fit_options))
    assert [settings["model"]["init_args"]["lr"] for settings in found.values()] == [0.1, 0.3, 1.0, 3.0, 10.0]
    assert {settings["data"]["init_args"]["val_clients"] for settings in found.values()} == {0.5}


def test_the_penalty_is_searched_for_fedavg_and_for_each_conformity_as_in_the_paper(plan, place, monkeypatch):
    found = {}
    monkeypatch.setattr(search, "tried", lambda place, sweep: found.update(plan(place, sweep)))
    search.penalty_claims(here := place("femnist_linear", fit_options))
    models = [settings["model"]["init_args"] for settings in found.values()]
    assert [each["weight_decay"] for each in models] == [10.0**power for power in range(-10, -4)] * 4
    assert [each.get("conformity", 1.0) for each in models] == np.repeat([1.0, 0.8, 0.5, 0.1], 6).tolist()
    assert {settings["data"]["init_args"]["val_clients"] for settings in found.values()} == {0.5}
    assert [(here.folder / "penalties.md").read_text().count(f"| {name} ") for name in found] == [1] * 24
