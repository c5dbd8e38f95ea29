from functools import partial

import pytest
from fakes.loops import batches, cross_entropy, participants
from fakes.methods import assert_weighted_mean, built, distance, make_method, tensors
from fakes.quadratics import Quadratics, built_at, network, point
from torch.func import grad

from pfl_lightning.methods import HFMAML, FedAvg, PerFedAvg

pytestmark = pytest.mark.usefixtures("float64")


# f = (w - 3)^2 from w = 0, inner .1, outer .05: v = .6, so w = .05 * 4.8; with the Hessian: times 1 - .1 * 2
@pytest.mark.parametrize(("make", "after"), [(PerFedAvg, 0.24), (HFMAML, 0.192)])
def test_a_step_on_a_quadratic_has_its_closed_form(make, after, fit):
    data = Quadratics([[3.0]], curvature=2.0)
    method = make_method(make, network=network, batch_size=1, inner_lr=0.1, lr=0.05)
    fit(built_at(method, data, [0.0]), data, 1, bare=True)
    assert point(method) == pytest.approx([after], abs=1e-10)


def by_hand(net, start, own):
    """One client's model after two epochs of pairs of batches."""
    w, key, gradient = start, (1, "train", 0, "all"), grad(partial(cross_entropy, net))
    for pairs in zip(batches(own, key, 2), batches(own, (*key, "other"), 2), strict=True):
        for first, second in zip(*pairs, strict=True):
            inner = gradient(w, *first)
            step = gradient({name: tensor - 0.3 * inner[name] for name, tensor in w.items()}, *second)
            w = {name: tensor - 0.1 * step[name] for name, tensor in w.items()}
    return w


def test_a_round_is_a_plain_loop_over_pairs_of_independent_batches(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(partial(PerFedAvg, inner_lr=0.3, epochs=2), data)
    start = tensors(method.network)
    fit(method, data, 1, bare=True)
    clients = [by_hand(method.network, start, own) for _, own in participants(data, 0)]
    assert_weighted_mean(method, start, clients, data.make_round(0).examples.counts)


def test_without_an_inner_step_a_full_batch_is_fedavgs(train):
    meta = train(partial(PerFedAvg, inner_lr=1e-30), 2, batch_size=100)
    assert distance(meta.network, train(FedAvg, 2, batch_size=100, weight_decay=0.0).network) < 1e-12
