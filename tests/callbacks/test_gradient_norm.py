from functools import partial

import numpy as np
import pytest
import torch
from fakes.methods import built, rows, tensors
from plain_methods import samples_of
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.callbacks import GradientNorm
from pfl_lightning.client import LocalTraining
from pfl_lightning.data import Arrays
from pfl_lightning.errors import PflError
from pfl_lightning.methods import DPSGD, IFCA, DePRL, FedAvg, FedRep, Local

WEIGHT = 0.3


def by_hand(method, data):
    """The norm by one client after another, with autograd."""
    kept, shared, names = rows(method), tensors(method.network), method.parts
    bodies = {name: kept[name] for name in names["body"] & kept.keys()}
    mean = {name: shared[name] for name in names["body"]} | {name: stack.mean(0) for name, stack in bodies.items()}
    counts = torch.as_tensor(data.training_counts, dtype=torch.float64)
    weights = counts / counts.sum() if method.weighting == "samples" else torch.full_like(counts, 1 / len(counts))
    of_body, of_heads = {name: torch.zeros_like(tensor) for name, tensor in mean.items()}, 0.0
    for client, weight in enumerate(weights):
        own = {**mean, **{name: kept[name][client] for name in names["head"]}}
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in own.items()}
        inputs, targets = samples_of(data.tables["train"].examples(torch.tensor([client])))
        F.cross_entropy(functional_call(method.network, leaves, inputs), targets).backward()
        for name in mean:
            of_body[name] += weight * leaves[name].grad
        of_heads += weight * sum(leaves[name].grad.square().sum() for name in names["head"])
    apart = sum((stack - stack.mean(0)).square().sum() for stack in bodies.values()) / len(counts)
    return [float(sum(grad.square().sum() for grad in of_body.values())), float(of_heads), float(apart)]


@pytest.mark.parametrize("make", [DePRL, partial(DePRL, head_init="random"), FedRep])
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_the_norm_is_that_of_a_plain_loop(make, chunk_size, float64, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(make, head_epochs=2), data, chunk_size=chunk_size)
    trainer = fit(method, data, 2, callbacks=[GradientNorm(WEIGHT)])
    body, heads, apart = by_hand(method, data)
    assert min(body, heads) > 1e-6
    assert (apart > 1e-6) == isinstance(method, DePRL)
    expected = body + WEIGHT * heads + apart
    assert float(trainer.callback_metrics["train/gradient_norm"]) == pytest.approx(expected, rel=1e-9)


def two_layers(input_shape, num_classes):
    return nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 1, bias=False))


def test_of_least_squares_it_is_the_closed_form(float64, fit):
    random = np.random.default_rng(0)
    inputs, targets, clients = random.normal(size=(60, 4)), random.normal(size=60), np.arange(60) ** 2 % 7
    data = Arrays(inputs, targets, clients, standardize=False, val_fraction=0.0)
    method = DePRL(network=two_layers, local=LocalTraining(lr=0.05), head_init="random")
    trainer = fit(method, data, 2, callbacks=[GradientNorm(WEIGHT)])
    ((body,), (head,)) = ([rows(method)[name] for name in method.parts[part]] for part in ("body", "head"))
    mean, shares = body.mean(0), torch.full((len(head),), 1 / len(head))  # as DePRL weighs clients
    of_body, of_heads = torch.zeros(3, 4), 0.0
    for client, share in enumerate(shares):
        x, y = samples_of(data.tables["train"].examples(torch.tensor([client])))
        residuals = (x @ mean.T @ head[client].T)[:, 0] - y
        of_body += share * head[client].T @ (residuals @ x)[None] / len(x)
        of_heads += share * (residuals @ x @ mean.T / len(x)).square().sum()
    expected = of_body.square().sum() + WEIGHT * of_heads + (body - mean).square().sum() / len(shares)
    assert float(trainer.callback_metrics["train/gradient_norm"]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("make", [DPSGD, FedAvg, IFCA, Local])
def test_methods_without_a_common_body_and_personal_heads_are_refused(make, ragged_data, fit):
    with pytest.raises(PflError, match=r"GradientNorm is not possible with .*; allowed: a method that averages bodies"):
        fit(built(make, ragged_data()), ragged_data(), 1, callbacks=[GradientNorm()])
