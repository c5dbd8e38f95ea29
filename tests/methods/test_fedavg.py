import numpy as np
import pytest
import torch
from fakes.loops import map_clients, trained
from fakes.methods import assert_weighted_mean, built, tensors

from pfl_lightning.methods import FedAvg

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
    clients, losses = map_clients(examples, lambda own: trained(method.network, start, start, own, key, lr=0.1, **rule))
    weights = torch.ones(len(examples)) if "weighting" in options else examples.counts
    assert_weighted_mean(method, start, clients, weights)
    expected = np.average(losses, weights=weights)
    assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(expected, abs=1e-10)
    assert expected != pytest.approx(np.average(losses, weights=examples.counts**2), rel=1e-3), "weights matter"
