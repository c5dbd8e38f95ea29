from functools import partial

import pytest
from fakes.loops import cross_entropy, descended, features, participants
from fakes.methods import built, distance, row, tensors, weighted_mean
from torch.nn import functional as F

from pfl_lightning.methods import MOON

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("backend", ["sequential", "batched"])
def test_two_rounds_are_a_plain_loop_with_features_of_three_models(backend, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(MOON, mu=2.0, temperature=0.3), data, weight_decay=0.0, epochs=2, backend=backend)
    shared = tensors(method.network)
    last = dict.fromkeys(range(6), shared)
    fit(method, data, 2, bare=True)
    for index in range(2):
        models = []
        for client, own in participants(data, index):

            def loss(model, inputs, targets, received=shared, previous=last[client]):
                near, far = (
                    F.cosine_similarity(features(model, inputs), features(other, inputs)) / 0.3
                    for other in (received, previous)
                )
                contrast = -(near.exp() / (near.exp() + far.exp())).log()
                return cross_entropy(method.network, model, inputs, targets) + 2 * contrast.mean()

            last[client] = descended(shared, loss, own, (1, "train", index, "all"), epochs=2)
            models.append(last[client])
        shared = weighted_mean(models, data.make_round(index).examples.counts)
    assert distance(shared, method.network) < 1e-10
    for client, model in last.items():
        assert distance(row(method, client, "previous."), model) < 1e-10
