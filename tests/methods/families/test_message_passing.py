"""What HeurFedAMP and FedAMP have in common."""

from functools import partial
from math import exp

import pytest
import torch
from fakes.loops import participants, pull, trained
from fakes.methods import built, normed, stepping, tensors
from torch.nn import functional as F

from pfl_lightning.methods import FedAMP, FedProx, HeurFedAMP

pytestmark = pytest.mark.usefixtures("float64")


def rows_of(method, prefix=""):
    """The clients' models, one tree per client."""
    stacks = {name: method.clients.stack(f"{prefix}{name}") for name in method.parts["all"]}
    return [dict(zip(stacks, rows, strict=True)) for rows in zip(*stacks.values(), strict=True)]


def flat(model):
    return torch.cat([model[name].flatten() for name in sorted(model)])


def by_cosines(model, others):
    scores = [exp(50 * F.cosine_similarity(flat(model), flat(other), dim=0)) for other in others]
    return [0.6 * score / sum(scores) for score in scores]  # what a self weight of 0.4 leaves


def by_distances(model, others):
    return [0.1 / 0.8 * exp(-(flat(model) - flat(other)).square().sum() / 0.8) for other in others]


def mix_by_hand(models, client, rule):
    others = [model for number, model in enumerate(models) if number != client]
    weights = rule(models[client], others)
    return {
        name: (1 - sum(weights)) * own + sum(w * other[name] for w, other in zip(weights, others, strict=True))
        for name, own in models[client].items()
    }


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (partial(HeurFedAMP, self_weight=0.4, sigma=50.0), by_cosines),
        (partial(FedAMP, sigma=0.8, attention_lr=0.1), by_distances),
    ],
    ids=["HeurFedAMP", "FedAMP"],
)
def test_rounds_with_absent_clients_are_those_of_a_plain_loop(make, rule, pool_of, fit):
    data = pool_of(3)
    method = built(partial(make, proximity=0.7), data, hidden=(40, 5))  # the first layer runs in dual form
    start, network = tensors(method.network), method.network
    models, mixes, absent = [start] * 6, [start] * 6, set(range(6))
    fit(method, data, 3, bare=True)
    for number in range(3):
        for client, own in participants(data, number):
            rule_of_client = {"key": (1, "train", number, "all"), "penalty": pull(0.7, mixes[client])}
            models[client], _ = trained(network, mixes[client], own, **rule_of_client)
            absent.discard(client)
        mixes = [mix_by_hand(models, client, rule) for client in range(6)]
    assert absent, "some clients never train; their models count all the same"
    for prefix, expected in (("", models), ("cloud.", mixes)):
        for found, by_hand in zip(rows_of(method, prefix), expected, strict=True):
            torch.testing.assert_close(flat(found), flat(by_hand), atol=1e-10, rtol=0)
    assert any("dual" in choice for choice in method.engine.choices.values())
    mean = sum(map(flat, models)) / 6
    torch.testing.assert_close(flat(method.network.state_dict()), mean, atol=1e-12, rtol=0)
    assert max((flat(one) - flat(other)).abs().max() for one, other in zip(models, mixes, strict=True)) > 1e-3


@pytest.mark.parametrize(
    "make",
    [partial(HeurFedAMP, self_weight=1 / 6, sigma=1e-12), partial(FedAMP, sigma=1e12, attention_lr=1e12 / 6)],
    ids=["HeurFedAMP", "FedAMP"],
)
def test_with_equal_weights_it_is_fedprox_with_the_plain_mean(make, train):
    mixing = train(partial(make, proximity=0.5), 3)
    prox = train(partial(FedProx, proximity=0.5), 3, weighting="uniform", weight_decay=0.0)
    common = flat(prox.network.state_dict())
    for model in (mixing.network.state_dict(), *rows_of(mixing, "cloud.")):
        torch.testing.assert_close(flat(model), common, atol=1e-10, rtol=0)


def test_statistics_of_batch_norm_are_mixed_but_not_compared():
    method = HeurFedAMP(network=normed)
    method.build((5,), 2, 3)
    for name in method.parts["all"]:
        stack = method.clients.stack(name)
        stack.copy_(100 * torch.rand(stack.shape) if "running" in name else torch.randn(stack.shape))
    names = [name for name, _ in method.network.named_parameters()]
    models = torch.cat([method.clients.stack(name).flatten(1) for name in names], dim=1)
    weights = method.attention(models @ models.T)
    stepping(method).server_update({}, None)
    for name in ("norm.running_mean", "norm.running_var", "head.weight"):
        mixed = torch.einsum("ij,j...->i...", weights, method.clients.stack(name))
        torch.testing.assert_close(method.clients.stack(f"cloud.{name}"), mixed)
