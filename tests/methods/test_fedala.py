from functools import partial

import pytest
import torch
from fakes.loops import trained
from fakes.methods import built, distance, rows, tensors, weighted_mean
from torch.func import functional_call, grad
from torch.nn import functional as F

from pfl_lightning.methods import FedALA, FedAvg
from pfl_lightning.seeding import permutations
from pfl_lightning.system import Participation

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
                outputs = functional_call(method.network, {**shared, **moving}, inputs[batch])
                return F.cross_entropy(outputs, targets[batch])

            slopes = grad(loss)(head())
            weights = {n: (weights[n] - 5 * slopes[n] * (shared[n] - local[n])).clamp(0, 1) for n in local}
    return head(), weights


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sequential", "batched"])
def test_four_rounds_of_half_of_the_clients_are_a_plain_loop(backend, ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=4))
    make = partial(FedALA, weight_lr=5.0, weight_epochs=2, share=0.7, head=2)
    method = built(make, data, backend=backend, epochs=2, weight_decay=1e-3, momentum=0.5)
    shared = tensors(method.network)
    heads = [{name: shared[name] for name in method.parts["head"]}] * 6
    weights = [{name: torch.ones_like(tensor) for name, tensor in heads[0].items()}] * 6
    fit(method, data, 4, bare=True)
    for index in range(4):
        examples, models = data.make_round(index).examples, []
        for row, client in enumerate(examples.ids.tolist()):
            own, key = examples.rows(row, row + 1), (1, "train", index)
            head, weights[client] = learned(method, shared, heads[client], weights[client], own, key, epochs=2)
            start = {**shared, **head}
            numbers = {"lr": 0.1, "epochs": 2, "momentum": 0.5, "decay": 1e-3}
            model, _ = trained(method.network, start, start, own, (*key, "all"), **numbers)
            heads[client] = {name: model[name] for name in head}
            models.append(model)
        shared = weighted_mean(models, examples.counts)
    assert distance(shared, method.network) < 1e-10
    found = [{name: stack[client] for name, stack in rows(method, "weight.").items()} for client in range(6)]
    assert max(distance(one, other) for one, other in zip(weights, found, strict=True)) < 1e-9
    every = torch.cat([tensor.flatten() for each in weights for tensor in each.values()])
    assert (every == 0).any()
    assert ((every > 0) & (every < 1)).any()
    ids = torch.arange(5, -1, -1)
    start = method.eval_model("personal", data.tables["train"].examples(ids), method.received(ids), (7,))
    for row, client in enumerate(ids.tolist()):
        own = data.tables["train"].examples(ids[row : row + 1])
        head, _ = learned(method, shared, heads[client], weights[client], own, (7,), epochs=2)
        assert distance({**shared, **head}, start.client(row)) < 1e-10


def test_weights_that_stay_1_are_fedavg(train):
    fedala, fedavg = train(partial(FedALA, weight_lr=0.0), 3), train(FedAvg, 3)
    assert distance(fedala.network, fedavg.network) < 1e-12
    assert all((stack == 1).all() for stack in rows(fedala, "weight.").values())
