from functools import partial

import torch

from pfl_lightning.methods import FedAvg, LGFedAvg
from pfl_lightning.models import MLP


def trained(make, ragged_data, fit, folder):
    method = make(network=partial(MLP, hidden=(8, 5)), batch_size=4, momentum=0.0)
    data = ragged_data(val_fraction=0.0)
    fit(method, data, 1, folder)
    return method, data


def test_the_last_two_layers_are_shared_and_the_others_are_kept(ragged_data, fit):
    method, _ = trained(LGFedAvg, ragged_data, fit, "run")
    assert method.shared == {"fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"}
    assert set(method.clients.names) == {"fc1.weight", "fc1.bias"}


def test_the_first_round_shares_the_head_that_fedavg_finds(ragged_data, fit):
    # all clients start from one model and train everything at once: only what is averaged differs
    local, _ = trained(LGFedAvg, ragged_data, fit, "local")
    common, _ = trained(FedAvg, ragged_data, fit, "common")
    for name in local.shared:
        assert torch.equal(local.network.state_dict()[name], common.network.state_dict()[name])
    assert not torch.equal(local.clients.stack("fc1.weight")[0], common.network.state_dict()["fc1.weight"])


def test_refitting_moves_the_body_alone(ragged_data, fit):
    method, data = trained(LGFedAvg, ragged_data, fit, "run")
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    (_, finetuned), (_, stored) = method.evaluate(train, (0,))
    assert finetuned.own.keys() == stored.own.keys() == set(method.clients.names)
    assert all((finetuned.own[name] != stored.own[name]).flatten(1).any(1).all() for name in method.clients.names)
    assert all(torch.equal(finetuned.shared[name], stored.shared[name]) for name in method.shared)
