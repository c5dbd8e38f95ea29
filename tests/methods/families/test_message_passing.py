"""What HeurFedAMP and FedAMP have in common."""

from functools import partial
from math import exp

import pytest
import torch
from fakes.methods import built, stepping
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.data import Digits
from pfl_lightning.methods import FedAMP, FedProx, HeurFedAMP
from pfl_lightning.models import MLP, Network
from pfl_lightning.seeding import permutations
from pfl_lightning.system import Participation


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


def rows_of(method, prefix=""):
    """The clients' models, one tree per client."""
    stacks = {name: method.clients.stack(f"{prefix}{name}") for name in method.parts["all"]}
    return [dict(zip(stacks, rows, strict=True)) for rows in zip(*stacks.values(), strict=True)]


def trained_by_hand(method, start, examples, row, number):
    """One client's model after an epoch of torch.optim.SGD on the loss with a pull of 0.7 to the start."""
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimizer = torch.optim.SGD(tensors.values(), lr=0.1)
    own = examples.rows(row, row + 1)
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    order = permutations((1, "train", number, "all", "order", 0), own.ids, own.counts, examples.longest)[0]
    for batch in order[: len(targets)].split(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(functional_call(method.network, tensors, inputs[batch]), targets[batch])
        (loss + 0.35 * sum((tensors[name] - start[name]).square().sum() for name in start)).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in tensors.items()}


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
def test_rounds_with_absent_clients_are_those_of_a_plain_loop(make, rule, ragged_data, fit):
    data = ragged_data(val_fraction=0.0, participation=Participation(pool_size=3))
    method = built(partial(make, proximity=0.7), data, hidden=(40, 5))  # the first layer runs in dual form
    start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    models, mixes, absent = [start] * 6, [start] * 6, set(range(6))
    fit(method, data, 3)
    for number in range(3):
        examples = data.make_round(number).examples
        for row, client in enumerate(examples.ids.tolist()):
            models[client] = trained_by_hand(method, mixes[client], examples, row, number)
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
def test_with_equal_weights_it_is_fedprox_with_the_plain_mean(make, ragged_data, fit):
    mixing = built(partial(make, proximity=0.5), ragged_data())
    prox = built(partial(FedProx, proximity=0.5), ragged_data(), weighting="uniform", weight_decay=0.0)
    for number, method in enumerate((mixing, prox)):
        fit(method, ragged_data(), 3, str(number))
    common = flat(prox.network.state_dict())
    for model in (mixing.network.state_dict(), *rows_of(mixing, "cloud.")):
        torch.testing.assert_close(flat(model), common, atol=1e-10, rtol=0)


def normed(input_shape, num_classes):
    return Network({"fc": nn.Linear(*input_shape, 4), "norm": nn.BatchNorm1d(4), "head": nn.Linear(4, num_classes)})


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


def test_clients_are_evaluated_by_what_they_trained_last(ragged_data, fit):
    data = ragged_data()
    method = built(HeurFedAMP, data)
    fit(method, data, 1)
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    ((name, personal),) = method.evaluate(train, (0,))
    assert (name,) == method.eval_models == ("personal",)
    for name in method.parts["all"]:
        assert torch.equal(personal.own[name], method.clients.stack(name)[train.ids])
        assert not torch.equal(personal.own[name], method.clients.stack(f"cloud.{name}")[train.ids])


def test_new_clients_begin_with_the_mean_of_all_models(fit):
    torch.set_default_dtype(torch.float32)
    method = HeurFedAMP(network=partial(MLP, hidden=(8,)))
    trainer = fit(method, Digits(num_clients=5), 2)
    expected = method.clients.mean(method.parts["all"])
    trainer.test(method, Digits(num_clients=5, new_clients=4, new_head_epochs=0))
    for model in (*rows_of(method), *rows_of(method, "cloud.")):
        torch.testing.assert_close(model, expected)
