from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes.methods import built

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedBABU
from pfl_lightning.models import LogisticRegression


def test_the_head_never_moves_and_the_body_does(ragged_data, fit):
    data = ragged_data()
    method = built(FedBABU, data, momentum=0.5)
    start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    fit(method, data, 3)
    for name, tensor in method.network.state_dict().items():
        assert torch.equal(tensor, start[name]) == (name in method.parts["head"])
    assert method.clients.names == []


def test_one_full_batch_moves_the_body_as_fedavg_does(ragged_data, fit):
    # the gradient of the body is the same whether the head moves along or not
    torch.set_default_dtype(torch.float64)
    states = []
    for number, make in enumerate((FedAvg, FedBABU)):
        method = built(partial(make, epochs=1), ragged_data())
        method.local_sgd = replace(method.local_sgd, batch_size=100)
        fit(method, ragged_data(), 1, str(number))
        states.append(method.network.state_dict())
    for name in method.parts["body"]:
        torch.testing.assert_close(states[0][name], states[1][name], atol=1e-12, rtol=0)
    assert not torch.equal(states[0]["fc3.weight"], states[1]["fc3.weight"])


def test_clients_are_evaluated_by_the_head_that_they_find_under_the_common_body(ragged_data, fit):
    data = ragged_data()
    method = built(FedBABU, data)
    trainer = fit(method, data, 1)
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    (first, finetuned), (second, common) = method.evaluate(train, (0,))
    assert (first, second) == ("finetuned", "global")
    assert set(finetuned.own) == method.parts["head"]
    assert all((finetuned.own[n] != common.shared[n]).flatten(1).any(1).all() for n in finetuned.own)
    assert "val/finetuned/accuracy/mean" in trainer.callback_metrics


def test_a_network_without_a_body_is_refused(ragged_data):
    data = ragged_data()
    with pytest.raises(PflError, match=r"model\.network: FedBABU needs a body; LogisticRegression has only one layer"):
        FedBABU(network=LogisticRegression).build(data.input_shape, data.num_classes, data.num_clients)
