"""Methods on modules that are none of ours; tests/methods/test_contract.py has that backends agree on them."""

from functools import partial

import pytest
import torch
from fakes.networks import Nested, Normed, Opaque, Plain
from torch import nn

from pfl_lightning.methods import DePRL, Ditto, FedAvg, FedRep, LGFedAvg, load_method
from pfl_lightning.models import MLP
from pfl_lightning.system import Participation

METHODS = {
    "DePRL": partial(DePRL, head_epochs=2),
    "Ditto": Ditto,
    "FedAvg": FedAvg,
    "FedRep": partial(FedRep, head_epochs=2),
    "LGFedAvg": partial(LGFedAvg, head=1),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


def tensors(method):
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def are_equal(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@every_method
@pytest.mark.parametrize("batch_norm", ["average", "local"])
def test_resume_is_exact_with_dropout_and_batch_norm_inside_of_a_module(make, batch_norm, ragged_data, fit, tmp_path):
    def run(rounds, folder, ckpt_path=None):
        torch.rand(len(folder))  # torch's own generator must not matter
        method = make(network=Normed, batch_size=4, batch_norm=batch_norm)
        fit(method, ragged_data(participation=Participation(pool_size=3)), rounds, folder, ckpt_path)
        return method

    straight = run(3, "straight")
    run(1, "resumed")
    resumed = run(3, "resumed", tmp_path / "resumed/checkpoints/last.ckpt")
    assert are_equal(tensors(straight), tensors(resumed))
    loaded = load_method(tmp_path / "resumed/checkpoints/last.ckpt", network=Normed)
    assert are_equal(tensors(loaded), tensors(resumed))
    kept = {name for name in straight.clients.names if "running_mean" in name and not name.startswith("personal")}
    assert bool(kept) == (batch_norm == "local" or isinstance(straight, LGFedAvg | DePRL))


@every_method
@pytest.mark.parametrize("backend", ["sequential", "batched"])
@pytest.mark.parametrize("network", [Plain, Opaque], ids=["split", "opaque"])
def test_a_module_trains_as_our_own_network_with_the_same_layers(make, network, backend, ragged_data, fit):
    torch.set_default_dtype(torch.float64)
    theirs, ours = (make(network=each, batch_size=4, backend=backend) for each in (network, partial(MLP, hidden=(6,))))
    data = ragged_data()
    theirs.build(data.input_shape, data.num_classes, data.num_clients, data.seed)
    fit(theirs, data, 2, "theirs")
    fit(ours, ragged_data(), 2, "ours")
    own = theirs.network.module_with(theirs.network.state_dict()).state_dict()
    for name, tensor in ours.network.state_dict().items():
        torch.testing.assert_close(own[name], tensor, rtol=0, atol=1e-10)


@every_method
def test_a_parameter_that_nothing_uses_stays(make, ragged_data, fit):
    method = make(network=Nested, weight_decay=0.0)
    fit(method, ragged_data(), 2)
    module = method.network.module_with(method.network.state_dict())
    with torch.random.fork_rng(devices=[]):
        again = make(network=Nested)
        data = ragged_data()
        again.build(data.input_shape, data.num_classes, data.num_clients, data.seed)
    start = again.network.module_with(again.network.state_dict())
    torch.testing.assert_close(module.unused.weight, start.unused.weight)
    assert isinstance(module, nn.Module)
    assert not torch.equal(module.features[0].weight, start.features[0].weight) or make is METHODS["LGFedAvg"]


def test_an_opaque_module_says_what_it_costs(ragged_data, fit):
    def choices(network):
        method = FedRep(network=network)
        fit(method, ragged_data(), 1, network.__name__)
        return ", ".join(method.engine.choices)

    assert "computed anew" not in choices(Plain)
    assert "Opaque (the rest of Opaque is computed anew in every step)" in choices(Opaque)
