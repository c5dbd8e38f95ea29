from functools import partial

import pytest
import torch
from fakes.loops import descended, features, participants
from fakes.methods import built, distance, row, tensors, weighted_mean
from methods.test_fedcp import by_pairs
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.methods import FedAvg, FedPHP
from pfl_lightning.models import Network

pytestmark = pytest.mark.usefixtures("float64")


def test_a_mean_of_models_forgets_less_the_more_rounds_a_client_has_had(ragged_data, monkeypatch):
    data = ragged_data()
    method = built(partial(FedPHP, expected=10), data)
    data.setup()
    cohort = data.make_round(0).examples
    received, found = method.received(cohort.ids), []

    def to_the_next_number(examples, before, phase, key):
        model = {name: torch.full_like(own, len(found) + 1.0) for name, own in before.under("personal").own.items()}
        return before.with_own(model), torch.zeros(len(examples))

    monkeypatch.setattr(method.engine, "train", to_the_next_number)
    for _ in range(3):
        received, _ = method.local_update(cohort, received, (0,))
        found.append(received.own["personal.fc1.weight"][0, 0, 0].item())
    assert found == pytest.approx([1, 1.91, 2.8038])


def by_outputs(network, moving, past, inputs):
    """Cross-entropy with the softened outputs of another model."""
    taught = (functional_call(network, past, inputs) / 4).softmax(1)
    return -(taught * functional_call(network, moving, inputs).log_softmax(1)).sum(1).mean()


@pytest.mark.parametrize("transfer", ["mmd", "kd"])
def test_three_rounds_of_most_clients_are_a_plain_loop(transfer, pool_of, fit):
    data = pool_of(4)
    options = {"strength": 0.4, "mu": 0.8, "expected": 2, "transfer": transfer}
    method = built(partial(FedPHP, **options), data, weight_decay=0.0, epochs=2)
    network, shared = method.network, tensors(method.network)
    means, rounds = {}, dict.fromkeys(range(6), 0)

    def loss(moving, inputs, targets, past):
        entropy = F.cross_entropy(functional_call(network, moving, inputs), targets)
        if past is None:
            return entropy
        if transfer == "kd":
            return 0.6 * entropy + 0.4 * by_outputs(network, moving, past, inputs)
        return 0.6 * entropy + 0.4 * by_pairs(features(moving, inputs), features(past, inputs))

    fit(method, data, 3, bare=True)
    for index in range(3):
        models = []
        for client, own in participants(data, index):
            past = means.get(client)
            models.append(descended(shared, partial(loss, past=past), own, (1, "train", index, "all"), epochs=2))
            share = min(0.8 * rounds[client] / 2, 0.8)
            means[client] = {name: (1 - share) * new for name, new in models[-1].items()}
            if share:
                means[client] = {name: new + share * past[name] for name, new in means[client].items()}
            rounds[client] += 1
        shared = weighted_mean(models, data.make_round(index).examples.counts)
    assert max(rounds.values()) == 3
    assert distance(shared, method.network) < 1e-9
    for client, mean in means.items():
        assert distance(mean, row(method, client, "personal.")) < 1e-9


def test_without_the_term_the_shared_model_is_that_of_fedavg(train):
    usual, without, taught = (train(make, 3).network for make in (FedAvg, partial(FedPHP, strength=0.0), FedPHP))
    assert distance(usual, without) < 1e-12
    assert distance(usual, taught) > 1e-6


def test_without_mu_a_client_keeps_its_last_model(pool_of, train):
    data = pool_of(1)
    method = train(partial(FedPHP, mu=0.0), 3, data)
    (client,) = data.make_round(2).examples.ids.tolist()
    assert distance(method.network, row(method, client, "personal.")) < 1e-12


def test_a_client_is_evaluated_with_the_shared_model_until_it_has_one_of_its_own(pool_of, train):
    data = pool_of(3)
    method = train(FedPHP, 1, data)
    participated = set(data.make_round(0).examples.ids.tolist())
    assert 0 < len(participated) < 6
    for client in range(6):
        is_own = distance(method.client(client, "personal"), method.network) > 1e-6
        assert is_own == (client in participated)


def of_one_output(input_shape, num_classes):
    return Network({"flat": nn.Flatten(), "fc1": nn.Linear(256, 5), "fc3": nn.Linear(5, 1)})


def test_a_single_output_is_taught_both_classes(classes_of):
    method = built(FedPHP, classes_of(2), network=of_one_output)
    outputs, z = torch.tensor([[0.5], [-2.0]]), torch.randn(2, 5)
    head = {f"personal.{name}": tensor for name, tensor in tensors(method.network).items() if "fc3" in name}
    (logits,) = (z @ head["personal.fc3.weight"].T + head["personal.fc3.bias"]).T
    taught = (logits / 4).sigmoid()
    expected = -taught * F.logsigmoid(outputs[:, 0]) - (1 - taught) * F.logsigmoid(-outputs[:, 0])
    torch.testing.assert_close(method.divergences(outputs, z, {"personal": z, **head}), expected)
