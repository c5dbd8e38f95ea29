from functools import partial

import pytest
import torch
from fakes.methods import assert_weighted_mean, built
from fakes.quadratics import Quadratics, built_at, network, point
from torch.func import functional_call, grad
from torch.nn import functional as F

from pfl_lightning.methods import HFMAML, FedAvg, PerFedAvg
from pfl_lightning.seeding import permutations


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


# f = (w - 3)^2 from w = 0, inner .1, outer .05: v = .6, so w = .05 * 4.8; with the Hessian: times 1 - .1 * 2
@pytest.mark.parametrize(("make", "after"), [(PerFedAvg, 0.24), (HFMAML, 0.192)])
def test_a_step_on_a_quadratic_has_its_closed_form(make, after, fit):
    data = Quadratics([[3.0]], curvature=2.0)
    method = make(network=network, batch_size=1, inner_lr=0.1, lr=0.05)
    fit(built_at(method, data, [0.0]), data, 1)
    assert point(method) == pytest.approx([after], abs=1e-10)


def by_hand(net, start, examples, client):
    """One client's model after two epochs of pairs of batches."""
    own = examples.rows(client, client + 1)
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    w, key = start, (1, "train", 0, "all")
    for epoch in range(2):
        orders = [
            permutations((*key, *extra, "order", epoch), own.ids, own.counts, len(targets))[0].split(4)
            for extra in ((), ("other",))
        ]
        for first, second in zip(*orders, strict=True):
            g, h = (
                grad(lambda at, seen=seen: F.cross_entropy(functional_call(net, at, inputs[seen]), targets[seen]))
                for seen in (first, second)
            )
            inner = g(w)
            step = h({name: tensor - 0.3 * inner[name] for name, tensor in w.items()})
            w = {name: tensor - 0.1 * step[name] for name, tensor in w.items()}
    return w


def test_a_round_is_a_plain_loop_over_pairs_of_independent_batches(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(PerFedAvg, inner_lr=0.3, epochs=2), data)
    start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    fit(method, data, 1)
    examples = data.make_round(0).examples
    clients = [by_hand(method.network, start, examples, client) for client in range(len(examples))]
    assert_weighted_mean(method, start, clients, examples.counts)


def test_without_an_inner_step_a_full_batch_is_fedavgs(ragged_data, fit):
    states = []
    for number, make in enumerate((partial(PerFedAvg, inner_lr=1e-30), partial(FedAvg, weight_decay=0.0))):
        method = built(make, ragged_data(), batch_size=100)
        fit(method, ragged_data(), 2, str(number))
        states.append(method.network.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], atol=1e-12, rtol=0)
