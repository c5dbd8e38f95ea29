"""The models that clients are evaluated with."""

from functools import partial

import pytest
import torch
from fakes.loops import trained
from fakes.methods import Models, built, distance, row, tensors

from pfl_lightning.methods import Ditto, FedAvg, FedBABU, FedRep, HeurFedAMP, KNNPer, LGFedAvg, Local, PerFedAvg


@pytest.mark.parametrize(("make", "part"), [(FedAvg, "head"), (FedBABU, "head"), (FedRep, "head"), (LGFedAvg, "body")])
def test_fine_tuning_is_a_plain_loop_from_what_a_client_keeps_in_an_order_of_the_round(
    make, part, float64, ragged_data, fit
):
    data = ragged_data(val_fraction=0.0)
    options = {"momentum": 0.2, "weight_decay": 0.05, "lr_decay": 0.5, "eval_epochs": 3}
    method = built(make, data, **options)
    method.evaluator.measures["finetuned/models"] = evaluated = Models()
    fit(method, data, 2)
    assert evaluated.found.keys() == set(range(6))
    rule = {"moves": method.parts[part], "epochs": 3, "momentum": 0.5, "decay": 0.05}
    for client, found in evaluated.found.items():
        before = {**method.network.state_dict(), **row(method, client)}
        own = data.tables["train"].examples(torch.tensor([client]))
        expected, _ = trained(method.network, before, own, (1, "refit", 2), **rule)
        assert distance(expected, found) < 1e-11
    assert distance(method.client(5, "finetuned", data), evaluated.found[5]) < 1e-11


def test_a_client_with_numbers_of_its_own_is_fine_tuned_with_them(float64, ragged_data):
    own = {"lr": 0.3, "batch_size": 3}
    data = ragged_data(val_fraction=0.0)
    data.setup("fit")
    found = []
    for numbers in ({"clients": {"2": own}}, own, {}):
        method = built(FedAvg, data, eval_epochs=2, **numbers)
        found.append([tensors(method.client(client, "finetuned", data)) for client in (2, 3)])
    some, everyone, none = found
    assert distance(some[0], everyone[0]) < 1e-12 < 1e-3 < distance(some[0], none[0])
    assert distance(some[1], none[1]) < 1e-12 < 1e-3 < distance(some[1], everyone[1])


@pytest.mark.parametrize(
    ("make", "models"),
    [
        (FedAvg, ("global", "finetuned")),
        (partial(FedAvg, eval_epochs=0), ("global",)),
        (FedBABU, ("finetuned", "global")),
        (FedRep, ("finetuned", "stored")),
        (partial(FedRep, eval_epochs=0), ("stored",)),
        (LGFedAvg, ("finetuned", "stored")),
        (Local, ("stored",)),
        (Ditto, ("personal", "global")),
        (HeurFedAMP, ("personal",)),
        (PerFedAvg, ("adapted", "global")),
    ],
)
def test_the_model_for_selection_is_the_first_one_that_clients_are_evaluated_by(make, models, ragged_data):
    assert built(make, ragged_data()).eval_models == models


@pytest.mark.parametrize(
    ("make", "model", "prefix"),
    [
        (FedRep, "stored", ""),
        (Ditto, "personal", "personal."),
        (HeurFedAMP, "personal", ""),
        (PerFedAvg, "global", ""),
        (KNNPer, "global", ""),
    ],
)
def test_a_clients_module_is_by_default_the_first_model_that_needs_no_training(make, model, prefix, ragged_data):
    method = built(make, ragged_data())
    for name in method.clients.names:
        method.clients.stack(name).normal_()
    own = row(method, 5, prefix)
    expected = {name: own.get(name, tensor) for name, tensor in method.network.state_dict().items()}
    assert distance(expected, method.client(5)) == distance(expected, method.client(5, model)) == 0
    assert "global" not in method.eval_models or distance(method.network, method.client(5, "global")) == 0
