from functools import partial

import pytest
import torch
from fakes.methods import built, distance

from pfl_lightning.methods import FedProto, LGFedAvg, Local
from pfl_lightning.models import MLP, Architectures

SMALL = partial(MLP, hidden=(6, 5))
WIDE = partial(MLP, hidden=(9, 7))
COPIES = partial(Architectures, networks=[SMALL, SMALL])
TWO = partial(Architectures, networks=[SMALL, WIDE], width=4)
METHODS = {"Local": Local, "LG-FedAvg": partial(LGFedAvg, head=1), "FedProto": FedProto}
methods = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


def models_of(method, data):
    """The tensors of all clients, by name."""
    return [method.client(client, "stored", data).state_dict() for client in range(data.num_clients)]


@methods
@pytest.mark.parametrize("clients", [None, [2, 4], [[5, 0], [1, 2, 3, 4]]])
def test_copies_of_a_network_do_what_one_does(make, clients, ragged_data, fit):
    runs = {}
    for name, network in (("one", SMALL), ("copies", partial(COPIES, clients=clients))):
        data = ragged_data()
        method = built(make, data, network=network)
        fit(method, data, 3, name)
        runs[name] = models_of(method, data), method.trainer.callback_metrics
    for one, copy in zip(*(models for models, _ in runs.values()), strict=True):
        for name, tensor in one.items():
            torch.testing.assert_close(copy[name], tensor, rtol=0, atol=1e-6)
    one, copies = (metrics for _, metrics in runs.values())
    assert one.keys() == copies.keys()
    for name, value in one.items():
        torch.testing.assert_close(copies[name], value, rtol=1e-5, atol=1e-6)
