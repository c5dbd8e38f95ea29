from copy import copy
from functools import partial

import pytest
import torch
from fakes.methods import assert_weighted_mean, built
from reproduction.srpfl.aliased import AdaptedFedAvg, AliasedHFMAML
from torch.nn import functional as F

from pfl_lightning.methods import FedAvg
from pfl_lightning.seeding import permutations, samples

ALPHA, BETA, DELTA = 0.2, 0.3, 1e-3


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


def with_references(network, batches):
    """HF-MAML on some batches by a program that keeps references to tensors which loading a state overwrites."""

    def gradients(inputs, targets):
        loss = F.cross_entropy(network(inputs), targets)
        return dict(zip(kept, torch.autograd.grad(loss, list(network.parameters())), strict=True))

    def load(along, by):
        moved = copy(kept)
        for name in moved:
            moved[name] = moved[name] + by * along[name]
        network.load_state_dict(moved)

    for batch in batches:
        kept = network.state_dict()  # the tensors themselves
        load(gradients(*batch), -ALPHA)
        v = gradients(*batch)
        load(v, DELTA)
        ahead = gradients(*batch)
        load(v, -DELTA)
        behind = gradients(*batch)
        for name in kept:
            kept[name] = kept[name] - BETA * (v[name] - ALPHA * (ahead[name] - behind[name]) / 2 / DELTA)
    return kept


def batches_of(own, key):
    """Two epochs of batches of four, and one batch that is drawn after them."""
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    orders = [
        permutations((*key, "all", "order", epoch), own.ids, own.counts, len(targets))[0].split(4) for epoch in range(2)
    ]
    last = samples([(*key, "last", "order", 0)], own.ids, own.counts, 4)[0, 0][: len(targets)]
    return [(inputs[some], targets[some]) for some in (*orders[0], *orders[1], last)]


def test_a_round_is_that_of_a_program_which_overwrites_what_it_keeps(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method, other = (
        built(partial(AliasedHFMAML, inner_lr=ALPHA, difference=DELTA, epochs=2), data, lr=BETA) for _ in range(2)
    )
    start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    fit(method, data, 1)
    examples = data.make_round(0).examples
    clients = []
    for client in range(len(examples)):
        other.network.load_state_dict(start)
        own = examples.rows(client, client + 1)
        clients.append(with_references(other.network, batches_of(own, (1, "train", 0))))
    assert_weighted_mean(method, start, clients, examples.counts, share=1e-8)


def test_adapted_fedavg_trains_as_fedavg_does(ragged_data, fit):
    states = []
    for number, make in enumerate((AdaptedFedAvg, partial(FedAvg, weight_decay=0.0))):
        method = built(make, ragged_data(), epochs=2)
        fit(method, ragged_data(), 2, str(number))
        states.append(method.network.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name])
