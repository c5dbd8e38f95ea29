from functools import partial

import pytest
import torch
from fakes.loops import cross_entropy, participants, trained
from fakes.methods import built, distance, row, rows, tensors, weighted_mean
from torch.func import grad

from pfl_lightning.methods import FedALA, FedAvg
from pfl_lightning.seeding import permutations

pytestmark = pytest.mark.usefixtures("float64")


def learned(method, shared, local, weights, own, key, epochs):
    """The head where a client starts, and its weights, by a plain loop."""
    count = int(own.counts)
    share = permutations((*key, "share"), own.ids, own.counts, count)[0][: max(1, round(0.7 * count))]
    inputs, targets = own.gather(share[None])[0], own.targets(share[None])[0]

    def head():
        return {name: local[name] + (shared[name] - local[name]) * weights[name] for name in local}

    for epoch in range(epochs):
        seen = torch.tensor([len(share)])
        for batch in permutations((*key, "weight", "order", epoch), own.ids, seen, len(share))[0].split(4):

            def loss(moving, batch=batch):
                return cross_entropy(method.network, {**shared, **moving}, inputs[batch], targets[batch])

            slopes = grad(loss)(head())
            weights = {n: (weights[n] - 5 * slopes[n] * (shared[n] - local[n])).clamp(0, 1) for n in local}
    return head(), weights


@pytest.mark.slow
def test_four_rounds_of_half_of_the_clients_are_a_plain_loop(backend, pool_of, fit):
    data = pool_of(4)
    make = partial(FedALA, weight_lr=5.0, weight_epochs=2, share=0.7, head=2)
    method = built(make, data, backend=backend, epochs=2, weight_decay=1e-3, momentum=0.5)
    shared = tensors(method.network)
    heads = [{name: shared[name] for name in method.parts["head"]}] * 6
    weights = [{name: torch.ones_like(tensor) for name, tensor in heads[0].items()}] * 6
    fit(method, data, 4, bare=True)
    for index in range(4):
        models, key = [], (1, "train", index)
        for client, own in participants(data, index):
            head, weights[client] = learned(method, shared, heads[client], weights[client], own, key, epochs=2)
            rule = {"epochs": 2, "momentum": 0.5, "decay": 1e-3}
            model, _ = trained(method.network, {**shared, **head}, own, (*key, "all"), **rule)
            heads[client] = {name: model[name] for name in head}
            models.append(model)
        shared = weighted_mean(models, data.make_round(index).examples.counts)
    assert distance(shared, method.network) < 1e-10
    assert max(distance(each, row(method, client, "weight.")) for client, each in enumerate(weights)) < 1e-9
    every = torch.cat([tensor.flatten() for each in weights for tensor in each.values()])
    assert (every == 0).any()
    assert ((every > 0) & (every < 1)).any()
    ids = torch.arange(5, -1, -1)
    start = method.eval_model("personal", data.tables["train"].examples(ids), method.received(ids), (7,))
    for place, client in enumerate(ids.tolist()):
        own = data.tables["train"].examples(ids[place : place + 1])
        head, _ = learned(method, shared, heads[client], weights[client], own, (7,), epochs=2)
        assert distance({**shared, **head}, start.client(place)) < 1e-10


def test_weights_that_stay_1_are_fedavg(train):
    fedala, fedavg = train(partial(FedALA, weight_lr=0.0), 3), train(FedAvg, 3)
    assert distance(fedala.network, fedavg.network) < 1e-12
    assert all((stack == 1).all() for stack in rows(fedala, "weight.").values())


def test_epochs_on_the_weights_are_full_ones_though_those_on_the_model_are_not(train, ragged_data):
    one = train(partial(FedALA, weight_lr=5.0), 2)
    other = built(partial(FedALA, weight_lr=5.0, epoch_steps=1), data := ragged_data())
    other.load_state_dict(one.state_dict())
    data.setup()
    samples = data.tables["train"].examples(torch.tensor([5, 4]))
    start, same = (each.learned_start(samples, each.received(samples.ids), (7,)) for each in (one, other))
    assert distance(start.tree, same.tree) == 0
    assert (start.under("weight").tree["fc3.weight"] < 1).any()
