from functools import partial
from math import exp

import pytest
import torch
from fakes.loops import descended, features, participants
from fakes.methods import built, distance, rows, tensors, weighted_mean
from torch.nn import functional as F

from pfl_lightning.methods import FedCP
from pfl_lightning.methods.fedcp import discrepancy
from pfl_lightning.models import MLP

pytestmark = pytest.mark.usefixtures("float64")

HEADS = {f"fc3.personal.{name}": f"fc3.{name}" for name in ("weight", "bias")}


@pytest.mark.slow
def test_three_rounds_of_half_of_the_clients_are_a_plain_loop(aggregator, pool_of, fit):
    data = pool_of(3)
    method = built(partial(FedCP, strength=3.0), data, weight_decay=0.0, epochs=2, aggregator=aggregator)
    shared = {name: tensor for name, tensor in tensors(method.network).items() if name not in HEADS}
    own = [{name: shared[other] for name, other in HEADS.items()}] * 6

    def loss(moving, inputs, targets):
        z, before = features(moving, inputs), features(shared, inputs)
        outputs = by_policy(z, moving, *((moving[name], shared[other]) for name, other in HEADS.items()))
        return F.cross_entropy(outputs, targets) + 3.0 * by_pairs(z, before)

    fit(method, data, 3, bare=True)
    for index in range(3):
        models = []
        for client, examples in participants(data, index):
            moving = {name: tensor for name, tensor in shared.items() if name not in HEADS.values()} | own[client]
            moving = descended(moving, loss, examples, (1, "train", index, "all"), epochs=2)
            own[client] = {name: moving.pop(name) for name in HEADS}
            models.append(moving | {other: (own[client][name] + shared[other]) / 2 for name, other in HEADS.items()})
        shared = weighted_mean(models, data.make_round(index).examples.counts)
    assert distance(shared, method.network) < 1e-9
    assert distance({name: torch.stack([head[name] for head in own]) for name in HEADS}, rows(method)) < 1e-9


def by_policy(z, moving, weights, biases):
    """Outputs of both heads, each with its share of the features."""
    client = weights[0].detach().sum(0)
    inputs = z * client / client.square().sum().sqrt()
    found = inputs @ moving["fc3.policy.0.weight"].T + moving["fc3.policy.0.bias"]
    found = (found - found.mean(1, keepdim=True)) / (found.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    found = (found * moving["fc3.policy.1.weight"] + moving["fc3.policy.1.bias"]).clamp(min=0)
    share = (found[:, :5] - found[:, 5:]).sigmoid()
    return (z * share) @ weights[0].T + biases[0] + (z * (1 - share)) @ weights[1].T + biases[1]


def by_pairs(one, other):
    """The MMD, pair by pair."""
    total = 0.0
    for x, y, sign in ((one, one, 1), (other, other, 1), (one, other, -2)):
        for a in x:
            for b in y:
                total = total + sign * sum((-(a - b).square().sum() / 2 / h).exp() for h in (10, 15, 20, 50))
    return total / len(one) ** 2


def test_the_discrepancy_has_its_closed_form_ignores_padding_and_is_zero_for_the_same_samples():
    near, far = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    value = 2 * sum(1 - exp(-25 / 2 / width) for width in (10, 15, 20, 50))
    assert discrepancy(near, far, torch.ones(1)).item() == pytest.approx(value, abs=1e-12)
    padded = [torch.cat([each, torch.randn(2, 2)]) for each in (near, far)]
    assert discrepancy(*padded, torch.tensor([1.0, 0.0, 0.0])).item() == pytest.approx(value, abs=1e-12)
    some = torch.randn(4, 2)
    assert discrepancy(some, some.flip(0), torch.full((4,), 0.25)).item() == pytest.approx(0.0, abs=1e-12)


def test_before_training_the_two_heads_are_one_whatever_the_policy_says(ragged_data):
    data = ragged_data()
    method = built(FedCP, data)
    plain, inputs = MLP(data.input_shape, data.num_classes, hidden=(8, 5)), torch.randn(7, *data.input_shape)
    model = method.client(0).state_dict()
    plain.load_state_dict({name: model[name] for name in plain.state_dict()})
    assert model["fc3.policy.0.weight"].abs().max() > 0.1
    torch.testing.assert_close(method.client(0)(inputs), plain(inputs) + plain.fc3.bias)
