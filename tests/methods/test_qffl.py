from functools import partial

import pytest
import torch
from fakes.loops import cross_entropy, map_clients, participants, samples_of, trained
from fakes.methods import built, distance, tensors
from fakes.quadratics import Quadratics, built_at, network, point
from torch.optim.lr_scheduler import LambdaLR

from pfl_lightning.client import LocalTraining
from pfl_lightning.methods import QFFL

pytestmark = pytest.mark.usefixtures("float64")


def test_a_round_is_a_plain_loop(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(QFFL, q=2.0), data, weight_decay=0.0)
    start, key = tensors(method.network), (1, "train", 0, "all")
    fit(method, data, 1, bare=True)
    models, _ = map_clients(data, lambda own: trained(method.network, start, own, key))
    change, curvature = {name: torch.zeros_like(tensor) for name, tensor in start.items()}, 0.0
    for model, (_, own) in zip(models, participants(data, 0), strict=True):
        loss = cross_entropy(method.network, start, *samples_of(own))
        delta = {name: (start[name] - model[name]) / 0.1 for name in start}
        curvature += 2 * loss * sum(tensor.square().sum() for tensor in delta.values()) + loss**2 / 0.1
        change = {name: change[name] + loss**2 * delta[name] for name in change}
    expected = {name: start[name] - change[name] / curvature for name in start}
    assert distance(expected, start) > 1e-3
    assert distance(expected, method.network) < 1e-10


def test_a_round_without_a_rate_leaves_the_model_as_it_was(train):
    schedule = partial(LambdaLR, lr_lambda=lambda rounds: float(rounds == 0))
    one, two = (train(partial(QFFL, lr_schedule=schedule), rounds) for rounds in (1, 2))
    assert distance(one.network, two.network) < 1e-15


def test_a_client_whose_loss_is_0_does_no_harm(fit):
    data = Quadratics([[0.2], [1.0]])
    method = built_at(
        QFFL(q=0.5, local=LocalTraining(batch_size=9, lr=0.1, weight_decay=0.0), network=network), data, [0.2]
    )
    fit(method, data, 1, bare=True)
    assert 0.2 < point(method)[0] < 1
