from functools import partial

import pytest
import torch
from fakes.loops import cross_entropy, descended, features, near_prototypes, participants, samples_of
from fakes.methods import built, distance, row, rows, tensors

from pfl_lightning.methods import FedProto, Local
from pfl_lightning.server import SecureAggregator

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("aggregator", [None, SecureAggregator(limit=100.0)], ids=["clear", "secure"])
def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, pool_of, fit):
    data = pool_of(3)
    method = built(partial(FedProto, strength=0.7), data, weight_decay=0.0, aggregator=aggregator)
    start = tensors(method.network)
    models, prototypes = [start] * 6, {}

    def loss(model, inputs, targets):
        near = near_prototypes(model, inputs, targets, prototypes)
        return cross_entropy(method.network, model, inputs, targets) + 0.7 * near

    fit(method, data, 3, bare=True)
    for index in range(3):
        seen = []
        for client, own in participants(data, index):
            models[client] = descended(models[client], loss, own, (1, "train", index, "all"))
            inputs, targets = samples_of(own)
            seen += zip(features(models[client], inputs), targets.tolist(), strict=True)
        classes = {label for _, label in seen}
        means = {y: torch.stack([z for z, label in seen if label == y]).mean(0) for y in classes}
        prototypes = prototypes | means
    for client, model in enumerate(models):
        assert distance(model, row(method, client)) < 1e-9
    for label, prototype in prototypes.items():
        assert (method.server.tree["prototypes"][label] - prototype).abs().max() < 1e-9
    assert distance(start, method.network) == 0


def test_without_the_term_it_is_local(train):
    proto, local = train(partial(FedProto, strength=0.0), 2), train(Local, 2)
    assert all(torch.equal(rows(proto)[name], stack) for name, stack in rows(local).items())


def test_prototypes_are_of_all_classes_where_the_head_has_several_layers(ragged_data, fit):
    data = ragged_data()
    method = built(FedProto, data, hidden=(8, 2), head=2)
    fit(method, data, 1, bare=True)
    assert method.server.tree["prototypes"].shape == (3, 8)
