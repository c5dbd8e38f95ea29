"""The runs of both libraries' tables have their protocols."""

import numpy as np
import pytest
from reproduction.baselines import niid_bench, pfllib
from reproduction.runs import Sweep

from pfl_lightning.settings.values import class_name


def planned(paper, rows, pair, scale, plan, place):
    """The settings of all runs of a table by method."""
    here = place(pair, paper.options, scale)
    return plan(here, *{row.method: Sweep((row.method,), options=row.options) for row in rows}.values())


def arguments(settings, part):
    return settings[part]["init_args"]


@pytest.mark.parametrize(("pair", "scale"), [("dirichlet", "small"), ("dirichlet", "two_cores"), ("2_classes", "full")])
def test_every_method_has_the_protocol_of_pfllib(pair, scale, plan, place):
    found = planned(pfllib.PAPER, pfllib.ROWS, pair, scale, plan, place)
    assert set(found) == {row.method for row in pfllib.ROWS}
    for name, settings in found.items():
        data, model = arguments(settings, "data"), arguments(settings, "model")
        assert class_name(data["partition"]["class_path"]) == {"dirichlet": "Dirichlet"}.get(pair, "GroupedShards")
        assert (data["num_clients"], data["test_fraction"], data["normalize"]) == (20, 0.25, "symmetric")
        assert data["val_fraction"] == (0.2 if name == "fedfomo" else 0)
        rate = 0.05 if name == "pfedme" else 0.005  # of pFedMe's personal models
        assert (model["lr"], model["batch_size"], model["weight_decay"]) == (rate, 10, 0)
        assert model.get("copy_lr", 0.005) == 0.005
        assert model.get("momentum", 0) == 0
        assert model.get("epochs", 1) * model.get("head_epochs", 1) == 1
        rounds = settings["trainer"]["max_steps"]
        pool = data["participation"] and data["participation"]["init_args"]["pool_size"]
        expected = {"small": (0.25, 10, 100), "two_cores": (1.0, 10, 100), "full": (1.0, None, 2000)}
        assert (data["sample_fraction"], pool, rounds) == expected[scale]


@pytest.mark.parametrize(("scale", "last"), [("small", "FedDBE"), ("two_cores", "FedProto"), ("full", "FedDBE")])
def test_two_cores_have_the_rows_up_to_fedproto(scale, last, place, monkeypatch):
    monkeypatch.setattr(pfllib, "table_claims", lambda place, rows, published: [row.name for row in rows])
    names = pfllib.check(place("dirichlet", scale=scale))
    assert names == [row.name for row in pfllib.ROWS][: names.index(last) + 1]


@pytest.mark.parametrize("pair", niid_bench.PUBLISHED)
def test_every_method_has_the_protocol_of_niid_bench(pair, plan, place):
    found = planned(niid_bench.PAPER, niid_bench.ROWS, pair, "full", plan, place)
    assert list(found) == ["local", "fedavg", "fedprox", "scaffold", "fednova"]
    name, _, partition = pair.partition("-")
    for method, settings in found.items():
        data, model = arguments(settings, "data"), arguments(settings, "model")
        assert class_name(settings["data"]["class_path"]).lower() == name.replace("_", "")
        kinds = {"dirichlet": "Dirichlet", "2_classes": "ClassShards", "iid": "IID"}
        assert class_name(data["partition"]["class_path"]) == kinds[partition]
        assert (data["num_clients"], model["epochs"], settings["trainer"]["max_steps"]) == (10, 10, 50)
        rate = (0.1, None) if method == "scaffold" else (0.01, 0.9)  # SCAFFOLD takes no momentum
        assert (model["lr"], model.get("momentum")) == rate


@pytest.mark.parametrize("module", [pfllib, niid_bench], ids=["pfllib", "niid_bench"])
def test_every_published_number_has_a_row(module):
    names = {row.name for row in module.ROWS}
    for numbers in module.PUBLISHED.values():
        assert numbers.keys() <= names
        assert {"Local", "FedAvg-FT"}.isdisjoint(numbers)
        assert np.all([0 < number.accuracy < 100 for number in numbers.values()])
