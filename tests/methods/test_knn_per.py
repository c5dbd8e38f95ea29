from functools import partial

import pytest
import torch
from fakes.loops import samples_of
from fakes.methods import built, distance
from fakes.networks import Nested

from pfl_lightning.client import log_probabilities
from pfl_lightning.methods import FedAvg, KNNPer
from pfl_lightning.models import MLP, LinearNetwork

pytestmark = pytest.mark.usefixtures("float64")


@torch.no_grad()
def chances_of(method, own, inputs, neighbours, weight):
    """Probabilities of the classes of some inputs of a client, ``[inputs, classes]``, one input after another."""
    body = torch.nn.Sequential(*list(method.network.children())[:-1])
    inputs_known, labels = samples_of(own)
    known = body(inputs_known)
    found = []
    for x in inputs:
        distances = [float((body(x[None])[0] - each).square().sum().sqrt()) for each in known]
        nearest = sorted(range(len(known)), key=distances.__getitem__)[:neighbours]
        votes = {place: torch.tensor(-distances[place]).exp() for place in nearest}
        vote = torch.zeros(3)
        for place, share in votes.items():
            vote[labels[place]] += share / sum(votes.values())
        outputs = method.network(x[None])[0]
        chances = outputs.softmax(0) if len(outputs) > 1 else torch.cat([1 - outputs.sigmoid(), outputs.sigmoid()])
        found.append(weight * vote[: len(chances)] + (1 - weight) * chances)
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sequential", "batched"])
@pytest.mark.parametrize(
    ("network", "neighbours", "weight"), [(MLP, 3, 0.6), (MLP, 1, 1.0), (Nested, 30, 0.6), (LinearNetwork, 3, 0.6)]
)
def test_predictions_are_those_of_a_plain_loop(backend, network, neighbours, weight, ragged_data):
    classes = 2 if network is LinearNetwork else 3

    class Data(ragged_data):
        num_classes = classes

        def load(self):
            return tuple(split._replace(targets=split.targets % classes) for split in super().load())

    data = Data()
    data.setup()
    method = built(partial(KNNPer, neighbours=neighbours, vote_weight=weight), data, backend=backend, network=network)
    train, test = (data.tables[split].examples(torch.arange(6)) for split in ("train", "test"))
    params = method.eval_model("neighbours", train, method.received(train.ids), ())
    (found,) = method.engine_of("neighbours", params).predictions(test, params)
    for row, present in enumerate(found.present):
        known, own = train.rows(row, row + 1), test.rows(row, row + 1)
        inputs = own.gather(own.positions)[0]
        expected, outputs = chances_of(method, known, inputs, neighbours, weight), found.outputs[row][present]
        assert (log_probabilities(outputs).exp() - expected).abs().max() < 1e-12
        module = method.client(row, "neighbours", data)
        assert (module(inputs) - outputs).abs().max() < 1e-10
    assert outputs.shape[1] == (1 if classes == 2 else 3)


def test_training_is_that_of_fedavg_and_without_votes_so_is_the_model(train, ragged_data):
    knn, fedavg = train(partial(KNNPer, vote_weight=0.0), 2), train(FedAvg, 2)
    assert distance(knn.network, fedavg.network) == 0
    inputs = torch.randn(5, 1, 16, 16)
    found, expected = knn.client(3, "neighbours", ragged_data())(inputs), fedavg.client(3, "global")(inputs)
    assert (found - expected.log_softmax(1)).abs().max() < 1e-12
    assert distance(knn.client(3), knn.network) == 0, "the model that needs no samples"
