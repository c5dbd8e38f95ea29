from functools import partial

import pytest
import torch
from fakes.loops import samples_of
from fakes.methods import built
from fakes.networks import Nested

from pfl_lightning.methods import KNNPer
from pfl_lightning.models import MLP, LinearNetwork
from pfl_lightning.tasks import log_probabilities

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
@pytest.mark.parametrize(
    ("network", "neighbours", "weight"), [(MLP, 3, 0.6), (MLP, 1, 1.0), (Nested, 30, 0.6), (LinearNetwork, 3, 0.6)]
)
def test_predictions_are_those_of_a_plain_loop(backend, network, neighbours, weight, classes_of):
    classes = 2 if network is LinearNetwork else 3
    data = classes_of(classes)
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
