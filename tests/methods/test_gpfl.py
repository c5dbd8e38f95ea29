from functools import partial

import pytest
import torch
from fakes.cohorts import examples_of
from fakes.loops import descended, features, participants, samples_of
from fakes.methods import built, distance, rows, tensors, weighted_mean
from torch.nn import functional as F

from pfl_lightning.methods import GPFL
from pfl_lightning.models import MLP
from pfl_lightning.tasks import Classification

pytestmark = pytest.mark.usefixtures("float64")

HEAD, SHARES = ("fc3.weight", "fc3.bias"), "fc3.class_shares"
GUIDES = ("fc3.embeddings", "fc3.valve.")


@pytest.mark.slow
def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, pool_of, fit):
    data = pool_of(3)
    method = built(partial(GPFL, strength=0.3, decay=0.2), data, weight_decay=0.0, epochs=2, aggregator=aggregator)
    start = tensors(method.network)
    shared = {name: tensor for name, tensor in start.items() if name not in (*HEAD, SHARES)}
    heads, shares = [{name: start[name] for name in HEAD}] * 6, [torch.full((3,), 1 / 3)] * 6
    fit(method, data, 3, bare=True)
    for index in range(3):
        models = []
        for client, own in participants(data, index):
            shares[client] = samples_of(own)[1].bincount(minlength=3) / own.counts

            def loss(model, inputs, targets, share=shares[client], received=shared["fc3.embeddings"]):
                z, classes = features(model, inputs), model["fc3.embeddings"]
                outputs = through(z, model, share @ classes.detach()) @ model["fc3.weight"].T + model["fc3.bias"]
                generic = through(z, model, classes.detach().mean(0))
                cosines = torch.stack([F.cosine_similarity(generic, each[None]) for each in classes], dim=1)
                away = (generic - received[targets]).square().sum(1).sqrt().mean()
                ridge = sum(t.square().sum() for name, t in model.items() if name.startswith(GUIDES))
                labels = [F.cross_entropy(found, targets) for found in (outputs, cosines)]
                return sum(labels) + 0.3 * away + 0.1 * ridge

            model = descended(shared | heads[client], loss, own, (1, "train", index, "all"), epochs=2)
            heads[client] = {name: model.pop(name) for name in HEAD}
            models.append(model)
        shared = weighted_mean(models, data.make_round(index).examples.counts)
    assert distance(shared, method.network) < 1e-9
    kept = {name: torch.stack([head[name] for head in heads]) for name in HEAD} | {SHARES: torch.stack(shares)}
    assert kept.keys() == rows(method).keys()
    assert distance(kept, rows(method)) < 1e-9


def through(z, model, embedding):
    """The features behind the valve."""

    def condition(name):
        found = (model[f"fc3.valve.{name}.0.weight"] @ embedding + model[f"fc3.valve.{name}.0.bias"]).clamp(min=0)
        found = (found - found.mean()) / (found.var(correction=0) + 1e-5).sqrt()
        return found * model[f"fc3.valve.{name}.2.weight"] + model[f"fc3.valve.{name}.2.bias"]

    return ((condition("gamma") + 1) * z + condition("beta")).clamp(min=0)


def test_a_valve_that_does_nothing_leaves_the_users_network(ragged_data):
    data = ragged_data()
    method, inputs = built(GPFL, data), torch.randn(7, *data.input_shape)
    for name, tensor in method.network.state_dict().items():
        if ".valve." in name and ".2." in name:
            tensor.zero_()  # gamma and beta
    plain = MLP(data.input_shape, data.num_classes, hidden=(8, 5))
    plain.load_state_dict({name: method.network.state_dict()[name] for name in plain.state_dict()})
    torch.testing.assert_close(method.client(0)(inputs), plain(inputs))


def test_embeddings_are_of_both_classes_where_the_network_has_one_output():
    method, examples = GPFL(network=lambda shape, classes: MLP(shape, 1, hidden=(8, 5))), examples_of(classes=2)
    method.build((1, 16, 16), Classification().sized(2), len(examples))
    trained, losses = method.local_update(examples, method.received(examples.ids), (0,))
    assert trained.own["fc3.embeddings"].shape == (len(examples), 2, 5)
    assert losses.isfinite().all()
