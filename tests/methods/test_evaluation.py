from functools import partial

import pytest
import torch
from fakes.loops import trained
from fakes.methods import Models, built

from pfl_lightning.methods import Ditto, FedAvg, FedBABU, FedRep, LGFedAvg, Local, PerFedAvg


@pytest.mark.parametrize(("make", "part"), [(FedAvg, "head"), (FedRep, "head"), (LGFedAvg, "body")])
def test_refitting_is_a_plain_loop_from_what_a_client_keeps_in_an_order_of_the_round(make, part, ragged_data, fit):
    torch.set_default_dtype(torch.float64)
    data = ragged_data(val_fraction=0.0)
    options = {"momentum": 0.2, "weight_decay": 0.05, "lr_decay": 0.5, "eval_epochs": 3, "eval_momentum": 0.8}
    method = built(make, data, **options)
    method.evaluator.measures["finetuned/models"] = evaluated = Models()
    fit(method, data, 2)
    assert evaluated.found.keys() == set(range(6))
    rule = {"lr": 0.1, "epochs": 3, "momentum": 0.8, "decay": 0.05}
    for client, found in evaluated.found.items():
        kept = {name: method.clients.stack(name)[client] for name in method.clients.names}
        before, own = {**method.network.state_dict(), **kept}, data.tables["train"].examples(torch.tensor([client]))
        expected, _ = trained(method.network, before, method.parts[part], own, (1, "refit", 2), **rule)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-11, rtol=0)
    module = method.client(5, "finetuned", data)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, evaluated.found[5][name], atol=1e-11, rtol=0)


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
        (PerFedAvg, ("adapted", "global")),
    ],
)
def test_the_model_for_selection_is_the_first_one_that_clients_are_evaluated_by(make, models, ragged_data):
    assert built(make, ragged_data()).eval_models == models


@pytest.mark.parametrize(("make", "model"), [(FedRep, "stored"), (Ditto, "personal"), (PerFedAvg, "global")])
def test_a_clients_module_is_by_default_the_first_model_that_needs_no_training(make, model, ragged_data):
    method = built(make, ragged_data())
    for name in method.clients.names:
        method.clients.stack(name).normal_()
    default, expected = method.client(5).state_dict(), method.client(5, model).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in default.items())
