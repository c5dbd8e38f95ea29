from functools import partial

import numpy as np
import pytest
import torch
from fakes.loops import map_clients, trained
from fakes.methods import assert_weighted_mean, built, distance, tensors

from pfl_lightning.methods import IFCA, MOON, QFFL, Ditto, FedAvg, FedDyn, FedEM, FedPer, KNNPer

DEFAULTS = {"momentum": 0.0, "decay": 1e-4}

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, DEFAULTS),
        ({"weighting": "uniform"}, DEFAULTS),
        ({"weight_decay": 0.0}, {"momentum": 0.0, "decay": 0.0}),
        ({"momentum": 0.3, "weight_decay": 0.05, "epochs": 2}, {"momentum": 0.3, "decay": 0.05, "epochs": 2}),
    ],
    ids=str,
)
def test_a_round_and_its_loss_are_means_over_plain_loops(options, rule, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(FedAvg, data, **options)
    start = tensors(method.network)
    trainer = fit(method, data, 1, bare=True)
    examples, key = data.make_round(0).examples, (1, "train", 0, "all")
    clients, losses = map_clients(data, lambda own: trained(method.network, start, own, key, **rule))
    weights = torch.ones(len(examples)) if "weighting" in options else examples.counts
    assert_weighted_mean(method, start, clients, weights)
    expected = np.average(losses, weights=weights)
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(expected, abs=1e-10)
    assert expected != pytest.approx(np.average(losses, weights=examples.counts**2), rel=1e-3), "weights matter"


@pytest.mark.parametrize(
    ("make", "options", "tolerance"),
    [
        (Ditto, {}, 0),  # the common model
        (partial(FedDyn, alpha=0.0), {"weighting": "uniform"}, 0),
        (partial(FedPer, keeps="nothing"), {}, 0),
        (partial(IFCA, groups=1), {}, 1e-12),
        (partial(MOON, mu=0.0), {}, 0),
        (partial(QFFL, q=0.0), {"weighting": "uniform"}, 1e-12),
    ],
)
def test_other_rules_are_fedavg_in_a_special_case(make, options, tolerance, train):
    assert distance(train(make, 2).network, train(FedAvg, 2, **options).network) <= tolerance


@pytest.mark.parametrize("make", [partial(FedEM, models=1), partial(KNNPer, vote_weight=0.0)])
def test_a_mix_with_nothing_else_is_fedavg_bit_for_bit_and_so_is_its_prediction(make, train, ragged_data):
    method, fedavg = train(make, 2), train(FedAvg, 2)
    assert distance(method.network, fedavg.network) == 0
    inputs = torch.randn(5, 1, 16, 16)
    module = method.client(3, method.eval_models[0], ragged_data())
    assert (module(inputs) - fedavg.client(3, "global")(inputs).log_softmax(1)).abs().max() < 1e-12
