"""Methods on modules that are none of ours; tests/methods/test_contract.py has that backends agree on them."""

from functools import partial

import pytest
import torch
from fakes.methods import built, distance
from fakes.networks import Nested, Normed, Opaque, Plain

from pfl_lightning import load_method
from pfl_lightning.methods import DePRL, Ditto, FedAvg, FedRep, LGFedAvg
from pfl_lightning.models import MLP
from pfl_lightning.system import Participation

METHODS = {
    "DePRL": partial(DePRL, head_epochs=2),
    "Ditto": Ditto,
    "FedAvg": FedAvg,
    "FedRep": partial(FedRep, head_epochs=2),
    "LGFedAvg": partial(LGFedAvg, head=1),
}


@pytest.mark.parametrize(("make", "batch_norm"), [(FedAvg, "local"), (DePRL, "average"), (Ditto, "local")])
def test_resume_is_exact_with_dropout_and_batch_norm_inside_of_a_module(make, batch_norm, ragged_data, fit, tmp_path):
    def run(rounds, folder, ckpt_path=None):
        torch.rand(len(folder))  # torch's own generator must not matter
        method = make(network=Normed, batch_size=4, batch_norm=batch_norm)
        fit(method, ragged_data(participation=Participation(pool_size=3)), rounds, folder, ckpt_path)
        return method

    straight = run(3, "straight")
    run(1, "resumed")
    resumed = run(3, "resumed", tmp_path / "resumed/checkpoints/last.ckpt")
    assert distance(straight, resumed) == 0
    assert distance(load_method(tmp_path / "resumed/checkpoints/last.ckpt", network=Normed), resumed) == 0
    kept = {name for name in straight.clients.names if "running_mean" in name and not name.startswith("personal")}
    assert bool(kept) == (batch_norm == "local" or make is DePRL)


@pytest.mark.parametrize(
    ("make", "network", "backend"),
    [
        *((make, Plain, "batched") for make in METHODS.values()),
        (METHODS["FedRep"], Plain, "sequential"),
        (METHODS["FedRep"], Opaque, "batched"),
        (METHODS["FedRep"], Opaque, "sequential"),
    ],
)
def test_a_module_trains_as_our_own_network_with_the_same_layers(make, network, backend, float64, train):
    theirs, ours = (train(make, 2, network=each, backend=backend) for each in (network, partial(MLP, hidden=(6,))))
    own = theirs.network.module_with(theirs.network.state_dict())
    assert distance(ours.network, own) < 1e-10


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_a_parameter_that_nothing_uses_stays(make, ragged_data, train):
    method, again = train(make, 2, network=Nested, weight_decay=0.0), built(make, ragged_data(), network=Nested)
    module, start = (each.network.module_with(each.network.state_dict()) for each in (method, again))
    torch.testing.assert_close(module.unused.weight, start.unused.weight)
    assert not torch.equal(module.features[0].weight, start.features[0].weight) or make is METHODS["LGFedAvg"]


def test_an_opaque_module_says_what_it_costs(train):
    plain, opaque = (", ".join(train(FedRep, 1, network=network).engine.choices) for network in (Plain, Opaque))
    assert "computed anew" not in plain
    assert "Opaque (the rest of Opaque is computed anew in every step)" in opaque
