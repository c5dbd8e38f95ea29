import pytest
import torch
from fakes.loops import map_clients, trained
from fakes.methods import built, distance, tensors
from fakes.quadratics import Quadratics, network

from pfl_lightning.methods import FedAvg, FedNova

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_a_round_is_a_plain_loop_over_clients_with_unequal_steps(momentum, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(FedNova, data, epochs=2, momentum=momentum, weight_decay=0.0)
    start, rule = tensors(method.network), {"key": (1, "train", 0, "all"), "epochs": 2, "momentum": momentum}
    fit(method, data, 1, bare=True)
    examples = data.make_round(0).examples
    models, _ = map_clients(data, lambda own: trained(method.network, start, own, **rule))
    factors = []  # by which each gradient has moved the model
    for samples in examples.counts.tolist():
        moves = velocity = 0.0
        for _ in range(2 * -(-samples // 4)):
            velocity = momentum * velocity + 1
            moves += velocity
        factors.append(moves)
    weights, steps = examples.counts / examples.counts.sum(), torch.tensor(factors)
    effective = (weights * steps).sum()
    expected = {
        name: tensor
        - effective * sum(w / s * (tensor - m[name]) for w, s, m in zip(weights, steps, models, strict=True))
        for name, tensor in start.items()
    }
    assert distance(expected, method.network) < 1e-10
    assert distance(expected, start) > 0.01


def test_with_equal_steps_it_is_fedavg(fit):
    networks = []
    for make in (FedAvg, FedNova):
        data = Quadratics([[1.0, 2.0], [3.0, -1.0], [0.0, 1.0]])
        data.setup()
        method = built(make, data, network=network, epochs=3)
        fit(method, data, 2, bare=True)
        networks.append(method.network)
    assert distance(*networks) < 1e-14
