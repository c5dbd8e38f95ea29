from functools import partial

import pytest
import torch
from fakes.methods import assert_weighted_mean, built
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.methods import FedAvg, FedProx
from pfl_lightning.seeding import permutations


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "epochs": 2}, {"epochs": 7, "epoch_steps": 1}], ids=str)
def test_without_proximity_it_is_fedavg_bit_for_bit(options, ragged_data, fit):
    states = []
    for make in (FedAvg, partial(FedProx, proximity=0.0)):
        method = built(make, ragged_data(), hidden=(40, 5), **options)
        fit(method, ragged_data(), 2, make.__class__.__name__)
        states.append(method.state_dict())
        assert "epoch_steps" in options or any("dual" in choice for choice in method.engine.choices.values())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def by_hand(method, start, examples, client, proximity):
    """One client's model after an epoch of torch.optim.SGD on the loss with the proximal term."""
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.SGD(tensors.values(), lr=0.1)
    own = examples.rows(client, client + 1)
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    key = (1, "train", 0, "all", "order", 0)
    order = permutations(key, own.ids, own.counts, examples.longest)[0, : len(targets)]
    for batch in order.split(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(functional_call(method.network, tensors, inputs[batch]), targets[batch])
        away = sum((tensors[name] - start[name]).square().sum() for name in start)
        (loss + proximity / 2 * away).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in tensors.items()}


@pytest.mark.parametrize("proximity", [0.5, 3.0])
def test_a_round_is_a_plain_loop_with_the_proximal_term(proximity, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(FedProx, proximity=proximity), data, hidden=(40, 5), weight_decay=0.0)
    start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    fit(method, data, 1)
    examples = data.make_round(0).examples
    clients = [by_hand(method, start, examples, client, proximity) for client in range(len(examples))]
    assert_weighted_mean(method, start, clients, examples.counts)


def test_the_stronger_the_pull_the_smaller_the_step(ragged_data, fit):
    travelled = []
    for proximity in (0.0, 1.0, 5.0):
        data = ragged_data()
        method = built(partial(FedProx, proximity=proximity), data, hidden=(40, 5), epochs=3)
        start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
        fit(method, data, 1, str(proximity))
        away = (method.network.state_dict()[name] - tensor for name, tensor in start.items())
        travelled.append(float(sum(change.square().sum() for change in away)))
    assert travelled[0] > travelled[1] > travelled[2] > 0
