import pytest
import torch
from fakes.methods import built, tensors

from pfl_lightning.methods import FedAvg, FedBABU

pytestmark = pytest.mark.usefixtures("float64")


def test_the_head_never_moves_and_the_body_does(ragged_data, fit):
    method = built(FedBABU, data := ragged_data(), momentum=0.5)
    start = tensors(method.network)
    fit(method, data, 3, bare=True)
    for name, tensor in method.network.state_dict().items():
        assert torch.equal(tensor, start[name]) == (name in method.parts["head"])
    assert method.clients.names == []


def test_one_full_batch_moves_the_body_as_fedavg_does(train):
    # the gradient of the body is the same whether the head moves along or not
    fedavg, method = (train(make, 1, batch_size=100).network.state_dict() for make in (FedAvg, FedBABU))
    for name, tensor in fedavg.items():
        assert torch.allclose(tensor, method[name], atol=1e-12, rtol=0) == (not name.startswith("fc3")), name
