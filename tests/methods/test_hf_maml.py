from functools import partial

import pytest
import torch
from fakes.methods import assert_weighted_mean, built
from torch.func import functional_call, grad, jvp
from torch.nn import functional as F

from pfl_lightning.methods import HFMAML
from pfl_lightning.models import MLP
from pfl_lightning.seeding import permutations, samples


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


def cross_entropy(network, tensors, inputs, targets):
    return F.cross_entropy(functional_call(network, tensors, inputs), targets)


def step_on(gradient, start, **options):
    """One step of rate 0.5 from a point, given as a row for each of two equal clients."""
    method = HFMAML(**options)
    tensors = {"w": torch.tensor([start, start])}

    def stacked(trees):
        return {"w": gradient(trees["w"])}

    direction = method.meta_gradient(tensors, stacked(tensors), stacked)
    assert torch.equal(direction["w"][0], direction["w"][1])
    return (tensors["w"] - 0.5 * direction["w"])[0].tolist()


@pytest.mark.parametrize(("b", "after"), [((0.0, 0.0), (0.36, 1.19)), ((1.0, -1.0), (0.68, 0.785))])
def test_a_step_on_a_quadratic_has_its_closed_form(b, after):
    # docs/derivations.md, HF-MAML: f = w^T A w / 2 - b^T w, A = diag(2, 1), w = (1, 2), alpha .1, beta .5
    def gradient(w):
        return w * torch.tensor([2.0, 1.0]) - torch.tensor(b)

    assert step_on(gradient, [1.0, 2.0], inner_lr=0.1) == pytest.approx(after, abs=1e-12)


def test_a_step_on_a_cubic_has_its_closed_form():
    # f = w^3 / 6 at w = 2: v = 1.62, h = w v = 3.24, so w becomes 2 - .5 (1.62 - .1 * 3.24)
    assert step_on(lambda w: w**2 / 2, [2.0], inner_lr=0.1) == pytest.approx([1.352], abs=1e-9)


def test_the_defaults_have_a_closed_form_on_a_quartic():
    # f = w^4 / 24 at w = 2: v = (2 - .01 * 8/6)^3 / 6, and h = w^2 v / 2 + d^2 v^3 / 6 with a difference d of .001
    v = (2 - 0.01 * 8 / 6) ** 3 / 6
    h = 2 * v + 1e-6 * v**3 / 6
    assert step_on(lambda w: w**3 / 6, [2.0]) == pytest.approx([2 - 0.5 * (v - 0.01 * h)], abs=1e-12)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")  # by torch's own jvp
def test_a_round_follows_the_exact_second_order_rule(ragged_data, fit):
    # one batch for all gradients of a step: the reference takes the Hessian times v from a Jacobian-vector product
    data = ragged_data(num_clients=3, val_fraction=0.0)
    method = HFMAML(network=partial(MLP, hidden=(5,)), batch_size=4, lr=0.5, inner_lr=0.2, difference=1e-4)
    method.build(data.input_shape, data.num_classes, data.num_clients, data.seed)
    start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    fit(method, data, 1)
    examples = data.make_round(0).examples
    clients = []
    for client, count in enumerate(examples.counts.tolist()):
        own, w = examples.rows(client, client + 1), start
        for batch in permutations((1, "train", 0, "all", "order", 0), own.ids, own.counts, count)[0].split(4):
            seen = {"inputs": own.gather(batch[None])[0], "targets": own.targets(batch[None])[0]}
            gradient = grad(partial(cross_entropy, method.network, **seen))
            g = gradient(w)
            v = gradient({name: tensor - 0.2 * g[name] for name, tensor in w.items()})
            _, hessian_times_v = jvp(gradient, (w,), (v,))
            w = {name: tensor - 0.5 * (v[name] - 0.2 * hessian_times_v[name]) for name, tensor in w.items()}
        clients.append(w)
    assert_weighted_mean(method, start, clients, examples.counts, share=1e-6)


def test_clients_are_evaluated_after_one_step_on_one_batch(ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    others = {"lr": 0.05, "lr_decay": 0.5, "weight_decay": 0.1, "clip_norm": 0.01, "epochs": 3}
    method = built(partial(HFMAML, inner_lr=0.3), data, **others)
    fit(method, data, 1)
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    (first, adapted), (second, common) = method.evaluate(train, (1, "refit", 1))
    assert (first, second) == ("adapted", "global")
    shared = method.network.state_dict()
    assert all(torch.equal(common.shared[name], tensor) for name, tensor in shared.items())
    for row, count in enumerate(train.counts.tolist()):
        own = train.rows(row, row + 1)
        batch = samples([(1, "refit", 1, "order", 0)], own.ids, own.counts, min(count, 4))[0]
        loss = partial(cross_entropy, method.network, inputs=own.gather(batch)[0], targets=own.targets(batch)[0])
        for name, slope in grad(loss)(shared).items():
            torch.testing.assert_close(adapted.own[name][row], shared[name] - 0.3 * slope, atol=1e-12, rtol=0)
