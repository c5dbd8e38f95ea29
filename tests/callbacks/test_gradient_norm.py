from functools import partial

import pytest
import torch
from fakes.methods import built, rows, tensors
from plain_methods import samples_of
from torch.func import functional_call
from torch.nn import functional as F

from pfl_lightning.callbacks import GradientNorm
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


@pytest.mark.parametrize("make", [DPSGD, FedAvg, IFCA, Local])
def test_methods_without_a_common_body_and_personal_heads_are_refused(make, ragged_data, fit):
    with pytest.raises(PflError, match=r"GradientNorm is not possible with .*; allowed: a method that averages bodies"):
        fit(built(make, ragged_data()), ragged_data(), 1, callbacks=[GradientNorm()])
