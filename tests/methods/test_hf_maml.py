from functools import partial

import pytest
import torch
from fakes.loops import batches, cross_entropy, participants
from fakes.methods import assert_weighted_mean, built, distance, tensors
from fakes.networks import Plain
from torch.func import grad, jvp
from torch.nn import functional as F

from pfl_lightning.methods import HFMAML, PerFedAvg
from pfl_lightning.models import MLP
from pfl_lightning.seeding import samples

pytestmark = pytest.mark.usefixtures("float64")


def step_on(gradient, start, **options):
    """One step of rate 0.5 from a point, given as a row for each of two equal clients."""
    method = HFMAML(**options)
    tensors = {"w": torch.tensor([start, start])}

    def stacked(trees):
        return {"w": gradient(trees["w"])}

    direction = method.meta_gradient(tensors, stacked(tensors), stacked, {})
    assert torch.equal(direction["w"][0], direction["w"][1])
    return (tensors["w"] - 0.5 * direction["w"])[0].tolist()


@pytest.mark.parametrize(
    ("gradient", "start", "after"),
    [
        # docs/evidence/derivations.md, HF-MAML: f = w^T A w / 2 - b^T w, A = diag(2, 1), w = (1, 2), alpha .1, beta .5
        (lambda w: w * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, -1.0]), [1.0, 2.0], [0.68, 0.785]),
        # f = w^3 / 6 at w = 2: v = 1.62, h = w v = 3.24, so w becomes 2 - .5 (1.62 - .1 * 3.24)
        (lambda w: w**2 / 2, [2.0], [1.352]),
    ],
    ids=["quadratic", "cubic"],
)
def test_a_step_has_its_closed_form(gradient, start, after):
    assert step_on(gradient, start, inner_lr=0.1) == pytest.approx(after, abs=1e-9)


def test_the_defaults_have_a_closed_form_on_a_quartic():
    # f = w^4 / 24 at w = 2: v = (2 - .01 * 8/6)^3 / 6, and h = w^2 v / 2 + d^2 v^3 / 6 with a difference d of .001
    v = (2 - 0.01 * 8 / 6) ** 3 / 6
    h = 2 * v + 1e-6 * v**3 / 6
    assert step_on(lambda w: w**3 / 6, [2.0]) == pytest.approx([2 - 0.5 * (v - 0.01 * h)], abs=1e-12)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")  # by torch's own jvp
def test_a_round_follows_the_exact_second_order_rule(ragged_data, fit):
    # one batch for all gradients of a step: the reference takes the Hessian times v from a Jacobian-vector product
    data = ragged_data(num_clients=3, val_fraction=0.0)
    method = built(HFMAML, data, hidden=(5,), lr=0.5, inner_lr=0.2, difference=1e-4)
    start, clients = tensors(method.network), []
    fit(method, data, 1, bare=True)
    for _, own in participants(data, 0):
        w = start
        for inputs, targets in batches(own, (1, "train", 0, "all"))[0]:
            gradient = grad(partial(cross_entropy, method.network, inputs=inputs, targets=targets))
            g = gradient(w)
            v = gradient({name: tensor - 0.2 * g[name] for name, tensor in w.items()})
            _, hessian_times_v = jvp(gradient, (w,), (v,))
            w = {name: tensor - 0.5 * (v[name] - 0.2 * hessian_times_v[name]) for name, tensor in w.items()}
        clients.append(w)
    assert_weighted_mean(method, start, clients, data.make_round(0).examples.counts, share=1e-6)


class Dropping(Plain):
    """Its dropout draws from torch's stream."""

    def forward(self, inputs):
        return self.fc2(F.dropout(self.fc1(inputs.flatten(1)), 0.5, self.training))


DROPOUT = partial(MLP, hidden=(8,), dropouts=(0.5,))


@pytest.mark.slow
@pytest.mark.parametrize(("network", "backend"), [(DROPOUT, "sequential"), (DROPOUT, "batched"), (Dropping, "auto")])
def test_dropout_is_the_same_throughout_a_step(network, backend, train):
    """Or what two random networks differ by would be divided by the small difference."""
    options = {"network": network, "backend": backend, "epochs": 3}
    coarse, fine = (train(partial(HFMAML, inner_lr=0.1, difference=d), 1, **options) for d in (1e-5, 1e-7))
    assert distance(coarse.network, fine.network) < 1e-6


@pytest.mark.parametrize("network", [DROPOUT, Dropping])
def test_dropout_is_another_in_each_step(network, train):
    one, two = (train(HFMAML, 1, network=network, epochs=epochs).network for epochs in (1, 2))
    assert distance(one, two) > 1e-3


@pytest.mark.parametrize("make", [PerFedAvg, HFMAML])
def test_clients_are_evaluated_after_one_step_on_one_batch(make, ragged_data, train):
    """Of plain SGD, whatever the options of local training."""
    others = {"lr": 0.05, "lr_decay": 0.5, "weight_decay": 0.1, "clip_norm": 0.01, "momentum": 0.5, "epochs": 3}
    method = train(partial(make, inner_lr=0.3), 1, data := ragged_data(val_fraction=0.0), **others)
    train_examples = data.make_eval_batch(data.evaluation_order[:6]).train
    adapted, common = dict(method.evaluate(train_examples, (1, "refit", 1))).values()
    shared = tensors(method.network)
    assert distance(common.shared, shared) == 0
    for row, count in enumerate(train_examples.counts.tolist()):
        own = train_examples.rows(row, row + 1)
        batch = samples([(1, "refit", 1, "order", 0)], own.ids, own.counts, min(count, 4))[0]
        loss = partial(cross_entropy, method.network, inputs=own.gather(batch)[0], targets=own.targets(batch)[0])
        expected = {name: shared[name] - 0.3 * slope for name, slope in grad(loss)(shared).items()}
        assert distance(expected, adapted.client(row)) < 1e-12
