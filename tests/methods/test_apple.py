from functools import partial
from itertools import chain
from math import cos, pi

import pytest
import torch
from fakes.loops import batches, cross_entropy, participants
from fakes.methods import built, distance, row, tensors
from torch.func import grad
from torch.optim import SGD

from pfl_lightning.methods import APPLE, FedAvg

pytestmark = pytest.mark.usefixtures("float64")


def test_four_rounds_of_half_of_the_clients_are_a_plain_loop(pool_of, fit):
    data = pool_of(3)
    method = built(partial(APPLE, relation_lr=0.05, mu=0.5, mu_rounds=3), data, epochs=2, lr=0.7)
    cores, relations = [tensors(method.network)] * 6, torch.full((6, 6), 1 / 6)

    def loss(core, weights, client, others, batch):
        models = [core if other == client else others[other] for other in range(6)]
        theta = {name: sum(weights[other] * models[other][name] for other in range(6)) for name in core}
        return cross_entropy(method.network, theta, *batch)

    fit(method, data, 4, bare=True)
    for index in range(4):
        moved = [*cores]
        strength = 0.5 * (1 + cos(pi * index / 3)) / 2 if index < 3 else 0
        for client, own in participants(data, index):
            core, weights = cores[client], relations[client].clone()
            for batch in chain(*batches(own, (1, "train", index, "all"), epochs=2)):
                slopes, slope = grad(loss, argnums=(0, 1))(core, weights, client, cores, batch)
                core = {name: tensor - 0.7 * slopes[name] for name, tensor in core.items()}
                weights = weights - 0.05 * (slope + strength * (weights - 1 / 6))
            moved[client], relations[client] = core, weights
        cores = moved
    assert (relations - 1 / 6).abs().max() > 1e-3
    assert (relations - method.clients.stack("relations")).abs().max() < 1e-10
    for client, core in enumerate(cores):
        assert distance(core, {name: stack[client] for name, stack in method.server.tree.items()}) < 1e-10
        assert distance(core, row(method, client)) < 1e-10


def test_with_equal_weights_it_is_fedavg_with_other_rates(train, pool_of):
    apple = train(partial(APPLE, relation_lr=0.0), 3, pool_of(4), lr=0.72)
    server = partial(SGD, lr=4.0)  # of the sum over participants, their mean's
    fedavg = train(FedAvg, 3, pool_of(4), lr=0.02, weight_decay=0.0, weighting="uniform", server_optimizer=server)
    assert distance(apple.network, fedavg.network) < 1e-12
