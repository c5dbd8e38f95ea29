import pytest
import torch
from fakes.loops import map_clients
from fakes.methods import built, tensors, weighted_mean
from fakes.torch_sgd import by_phase

from pfl_lightning.callbacks import AggregationError
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedExLoRA, FedPer, FlexLoRA, FLoRA, HetLoRA, RoLoRA
from pfl_lightning.models import LoRA
from pfl_lightning.system import Participation

RATES = {"optimizer": "AdamW", "epochs": 2, "lr": 0.01}
LAYERS = {"targets": ["fc1", "fc2"]}
NAME = "train/aggregation_error"

pytestmark = pytest.mark.usefixtures("float64")


def error(fit, method, data, rounds=2):
    trainer = fit(method, data, rounds, callbacks=[AggregationError()], bare=True)
    assert "participate" not in vars(method)
    return float(trainer.callback_metrics[NAME])


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_of_fedit_it_is_the_error_of_the_product_of_means(chunk_size, fit, ragged_data):
    data = ragged_data()
    data.setup()
    method = built(FedAvg, data, adapter=LoRA(2, **LAYERS), chunk_size=chunk_size, **RATES)
    phase, start = method.phase("all"), tensors(method.network)
    clients, _ = map_clients(data, lambda own: by_phase(method.network, start, phase, own, (1, "train", 0, "all")))
    counts = data.make_round(0).examples.counts
    mean = weighted_mean(clients, counts)
    products = [{path: each[f"{path}.lora_B"] @ each[f"{path}.lora_A"] for path in ("fc1", "fc2")} for each in clients]
    exact = weighted_mean(products, counts)
    lacking = [exact[path] - mean[f"{path}.lora_B"] @ mean[f"{path}.lora_A"] for path in exact]
    expected = sum(map(torch.sum, map(torch.square, lacking))) / sum(map(torch.sum, map(torch.square, exact.values())))
    assert expected > 1e-4
    assert error(fit, method, data, 1) == pytest.approx(float(expected.sqrt()), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "options"),
    [(FedAvg, {"freeze_a": True}), (RoLoRA, {}), (FedExLoRA, {}), (FLoRA, {}), (FlexLoRA, {"rank": 8})],
)
def test_it_is_0_for_methods_whose_sums_are_exact(make, options, fit, ragged_data):
    data = ragged_data(participation=Participation(pool_size=3))
    method = built(make, data, adapter=LoRA(**{"rank": 2, **LAYERS, **options}), **RATES)
    assert error(fit, method, data) < 1e-10


def test_flexloras_is_what_a_smaller_rank_cuts_off(fit, ragged_data):
    method = built(FlexLoRA, ragged_data(), adapter=LoRA(2, **LAYERS), **RATES)
    assert 1e-3 < error(fit, method, ragged_data()) < 1


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (FedAvg, {}),
        (FedPer, {"adapter": LoRA(2, **LAYERS), "keeps": "*lora_B"}),
        (HetLoRA, {"adapter": LoRA(2, **LAYERS)}),
    ],
)
def test_methods_that_do_not_average_both_factors_are_refused(make, options, fit, ragged_data):
    method = built(make, ragged_data(), **options)
    with pytest.raises(PflError, match=rf"^trainer\.callbacks: AggregationError is not possible with {make.__name__}"):
        error(fit, method, ragged_data())
