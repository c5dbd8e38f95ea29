import pytest
import torch
from fakes.loops import participants, samples_of, trained
from fakes.methods import built, distance, models_of, rows, weighted_mean
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.methods import FedEM
from pfl_lightning.models import LogisticRegression

pytestmark = pytest.mark.usefixtures("float64")


def shares_of(network, models, weights, own):
    """The q of each sample of a client, ``[samples, models]``."""
    shares = []
    for x, y in zip(*samples_of(own), strict=True):
        chances = [
            weight * functional_call(network, model, x[None])[0].softmax(0)[y]
            for model, weight in zip(models, weights, strict=True)
        ]
        shares.append(torch.stack(chances) / sum(chances))
    return torch.stack(shares).detach()


@pytest.mark.slow
@pytest.mark.parametrize("network", [None, LogisticRegression], ids=["mlp", "without a body"])
def test_four_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, network, pool_of, fit):
    data = pool_of(3)
    options = {} if network is None else {"network": network}
    method = built(FedEM, data, epochs=2, weight_decay=0.0, aggregator=aggregator, **options)
    models, weights = models_of(method), {client: torch.ones(3) / 3 for client in range(6)}
    fit(method, data, 4, bare=True)
    for index in range(4):
        found = [[] for _ in models]
        for client, own in participants(data, index):
            shares = shares_of(method.network, models, weights[client], own)
            weights[client] = shares.mean(0)
            for number, model in enumerate(models):
                key, factors = (1, "train", index, "all"), shares[:, number]
                found[number].append(trained(method.network, model, own, key, epochs=2, factors=factors)[0])
        models = [weighted_mean(every, data.make_round(index).examples.counts) for every in found]
    for known, model in zip(models_of(method), models, strict=True):
        assert distance(model, known) < (1e-10 if aggregator is None else 1e-9)
    kept = rows(method)["weights"]
    assert max((kept[client] - each).abs().max() for client, each in weights.items()) < 1e-9
    assert kept.std(0).min() > 1e-3, "clients differ"
    for client in range(6):
        own = data.tables["train"].examples(torch.tensor([client]))
        now = shares_of(method.network, models, weights[client], own).mean(0)
        inputs = torch.randn(5, *data.input_shape)
        chances = sum(
            weight * functional_call(method.network, model, inputs).softmax(1)
            for weight, model in zip(now, models, strict=True)
        )
        assert (method.client(client, data=data)(inputs) - chances.log()).abs().max() < 1e-8


def test_a_network_of_one_output_has_a_mixture_of_one_output(classes_of):
    data = classes_of(2)
    method, inputs = built(FedEM, data, network=LogisticRegression), torch.randn(5, 1, 16, 16)
    method.clients.stack("weights")[3] = torch.tensor([0.7, 0.2, 0.1])
    examples = data.tables["train"].examples(torch.tensor([3]))
    _, weights = method.shares(examples, method.received(examples.ids))
    chances = [functional_call(method.network, model, inputs).sigmoid() for model in models_of(method)]
    chance = sum(weight * each for weight, each in zip(weights[0], chances, strict=True))
    assert (method.client(3, data=data)(inputs).sigmoid() - chance).abs().max() < 1e-12


def test_new_heads_are_trained_on_the_body_of_the_model_with_the_most_weight(ragged_data):
    method = built(FedEM, ragged_data())
    for number, model in enumerate(models_of(method)):
        method.server.tree["weights"].copy_(F.one_hot(torch.tensor(number), 3))
        if number:
            method.server.tree[f"{number}.fc1.weight"].fill_(number)
            model["fc1.weight"].fill_(number)
        assert distance({name: model[name] for name in method.parts["body"]}, method.common_body()) == 0
