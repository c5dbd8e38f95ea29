from functools import partial
from itertools import chain
from math import cos, pi

import pytest
import torch
from fakes.loops import batches
from fakes.methods import built, distance, rows, tensors
from torch.func import functional_call, grad
from torch.nn import functional as F
from torch.optim import SGD

from pfl_lightning.methods import APPLE, FedAvg
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


def test_four_rounds_of_half_of_the_clients_are_a_plain_loop(ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=3))
    method = built(partial(APPLE, relation_lr=0.05, mu=0.5, mu_rounds=3), data, epochs=2, lr=0.7)
    cores, relations = [tensors(method.network)] * 6, torch.full((6, 6), 1 / 6)

    def loss(core, row, client, others, inputs, targets):
        models = [core if other == client else others[other] for other in range(6)]
        theta = {name: sum(row[other] * models[other][name] for other in range(6)) for name in core}
        return F.cross_entropy(functional_call(method.network, theta, inputs), targets)

    fit(method, data, 4, bare=True)
    for index in range(4):
        examples, found = data.make_round(index).examples, [*cores]
        strength = 0.5 * (1 + cos(pi * index / 3)) / 2 if index < 3 else 0
        for row, client in enumerate(examples.ids.tolist()):
            own, core, weights = examples.rows(row, row + 1), cores[client], relations[client].clone()
            for inputs, targets in chain(*batches(own, (1, "train", index, "all"), epochs=2)):
                slopes, slope = grad(loss, argnums=(0, 1))(core, weights, client, cores, inputs, targets)
                core = {name: tensor - 0.7 * slopes[name] for name, tensor in core.items()}
                weights = weights - 0.05 * (slope + strength * (weights - 1 / 6))
            found[client], relations[client] = core, weights
        cores = found
    assert (relations - 1 / 6).abs().max() > 1e-3
    assert (relations - method.clients.stack("relations")).abs().max() < 1e-10
    for client, core in enumerate(cores):
        assert distance(core, {name: stack[client] for name, stack in method.server.tree.items()}) < 1e-10
        assert distance(core, {name: rows(method)[name][client] for name in core}) < 1e-10


def test_with_equal_weights_it_is_fedavg_with_other_rates(train, ragged_data):
    data = partial(ragged_data, participation=Participation(pool_size=4))
    apple = train(partial(APPLE, relation_lr=0.0), 3, data(), lr=0.72)
    server = partial(SGD, lr=4.0)  # of the sum over participants, their mean's
    fedavg = train(FedAvg, 3, data(), lr=0.02, weight_decay=0.0, weighting="uniform", server_optimizer=server)
    assert distance(apple.network, fedavg.network) < 1e-12


def test_a_client_receives_the_core_models_of_all_others(train):
    apple, fedavg = (train(make, 1).accounting.ledger for make in (APPLE, FedAvg))
    loss = 6 * 64
    assert (apple.up + loss, apple.down) == (fedavg.up, 5 * fedavg.down)
