from functools import partial

import pytest
from fakes.loops import plain_rounds
from fakes.methods import assert_shared, built, distance, tensors
from plain_methods import PlainFedProx

from pfl_lightning.methods import FedAvg, FedProx

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "epochs": 2}, {"epochs": 7, "epoch_steps": 1}], ids=str)
def test_without_proximity_it_is_fedavg_bit_for_bit(options, train):
    methods = [train(make, 2, hidden=(40, 5), **options) for make in (FedAvg, partial(FedProx, proximity=0.0))]
    assert distance(*methods) == 0
    assert "epoch_steps" in options or all("dual" in "".join(method.engine.choices.values()) for method in methods)


@pytest.mark.parametrize("proximity", [0.5, 3.0])
def test_a_round_is_a_plain_loop_with_the_proximal_term(proximity, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(FedProx, proximity=proximity), data, hidden=(40, 5), weight_decay=0.0)
    start = tensors(method.network)
    plain = plain_rounds(PlainFedProx, method, data, 1, proximity=proximity)
    fit(method, data, 1, bare=True)
    assert distance(start, method.network) > 1e-2
    assert distance(plain.network, method.network) < 1e-12
    assert_shared(method, start, plain.network.state_dict())
