"""What HeurFedAMP and FedAMP have in common."""

from functools import partial

import pytest
import torch
from fakes.loops import participants, plain_rounds
from fakes.methods import built, normed, stepping
from plain_methods import PlainHeurFedAMP

from pfl_lightning.methods import FedAMP, FedProx, HeurFedAMP
from pfl_lightning.tasks import Classification

pytestmark = pytest.mark.usefixtures("float64")


def rows_of(method, prefix=""):
    """The clients' models, one tree per client."""
    stacks = {name: method.clients.stack(f"{prefix}{name}") for name in method.parts["all"]}
    return [dict(zip(stacks, rows, strict=True)) for rows in zip(*stacks.values(), strict=True)]


def flat(model):
    return torch.cat([model[name].flatten() for name in sorted(model)])


class PlainFedAMP(PlainHeurFedAMP):
    def shares(self, model, others):
        distances = torch.stack([(model - other).square().sum() for other in others])
        return 0.1 / 0.8 * (-distances / 0.8).exp()


@pytest.mark.parametrize(
    ("make", "loop", "options"),
    [
        (HeurFedAMP, PlainHeurFedAMP, {"self_weight": 0.4, "sigma": 50.0}),
        (FedAMP, PlainFedAMP, {"sigma": 0.8, "attention_lr": 0.1}),
    ],
)
def test_rounds_with_absent_clients_are_those_of_a_plain_loop(make, loop, options, pool_of, fit):
    data = pool_of(3)
    # the first layer runs in dual form
    method = built(partial(make, proximity=0.7, **options), data, hidden=(40, 5))
    plain = plain_rounds(loop, method, data, 3, proximity=0.7, **options)
    fit(method, data, 3, bare=True)
    present = {client for number in range(3) for client, _ in participants(data, number)}
    assert len(present) < 6, "some clients never train; their models count all the same"
    for prefix in ("", "cloud."):
        for client, model in enumerate(rows_of(method, prefix)):
            expected = {name: plain.states[client][f"{prefix}{name}"] for name in model}
            torch.testing.assert_close(flat(model), flat(expected), atol=1e-10, rtol=0)
    assert any("dual" in choice for choice in method.engine.choices.values())
    models = rows_of(method)
    torch.testing.assert_close(flat(method.network.state_dict()), sum(map(flat, models)) / 6, atol=1e-12, rtol=0)
    mixes = rows_of(method, "cloud.")
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
    method.build((5,), Classification().sized(2), 3)
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
