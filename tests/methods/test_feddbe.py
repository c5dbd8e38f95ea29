from functools import partial

import pytest
import torch
from fakes.loops import descended, features, participants, samples_of
from fakes.methods import built, distance, rows, tensors, weighted_mean
from fakes.tasks import token_data
from torch.nn import functional as F

from pfl_lightning.methods import FedAvg, FedDBE

pytestmark = pytest.mark.usefixtures("float64")

MEAN = "fc3.personal_mean"


def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, pool_of, fit):
    data = pool_of(3)
    method = built(partial(FedDBE, strength=20.0), data, weight_decay=0.0, epochs=2, aggregator=aggregator)
    shared = {name: tensor for name, tensor in tensors(method.network).items() if name != MEAN}
    means, consensus = [torch.zeros(5)] * 6, None

    def loss(model, inputs, targets):
        z = features(model, inputs)
        outputs = F.linear(z + model[MEAN], model["fc3.weight"], model["fc3.bias"])
        term = 0.0 if consensus is None else (z.mean(0) - consensus).square().mean()
        return F.cross_entropy(outputs, targets) + 10.0 * term

    fit(method, data, 3, bare=True)
    for index in range(3):
        models, mean_features, counts = [], [], data.make_round(index).examples.counts
        for client, own in participants(data, index):
            model = descended({**shared, MEAN: means[client]}, loss, own, (1, "train", index, "all"), epochs=2)
            means[client] = model.pop(MEAN)
            models.append(model)
            mean_features.append({"": features(model, samples_of(own)[0]).mean(0)})
        shared = weighted_mean(models, counts)
        if consensus is None:
            consensus = weighted_mean(mean_features, counts)[""]
    assert distance(shared, method.network) < 1e-9
    assert (method.server.tree["consensus"] - consensus).abs().max() < 1e-9
    assert distance({MEAN: torch.stack(means)}, rows(method)) < 1e-9
    assert torch.stack(means).abs().max() > 1e-3


def test_the_consensus_of_sequences_is_a_mean_over_their_steps(ragged_data, fit):
    data = token_data(ragged_data)(val_fraction=0.0)
    method = built(FedDBE, data, network=data.network, lr=1e-12)
    fit(method, data, 2, bare=True)
    states = method.network.gru(method.network.onehot(data.tables["train"].samples.inputs)).detach()
    means = [{"": states[own.index[0]].mean((0, 1))} for _, own in participants(data, 0)]
    expected = weighted_mean(means, data.make_round(0).examples.counts)[""]
    assert (method.server.tree["consensus"] - expected).abs().max() < 1e-9
    assert expected.abs().max() > 0.01


class Still(FedDBE):
    """Personal means stay at zero."""

    trains = "fc*[st]"  # weights and biases


def test_without_the_term_and_with_means_of_zero_it_is_fedavg(train):
    still, fedavg = train(partial(Still, strength=0.0), 3), train(FedAvg, 3)
    assert distance(fedavg.network, still.network) < 1e-12
    assert distance(fedavg.network, train(partial(Still, strength=50.0), 3).network) > 1e-3
