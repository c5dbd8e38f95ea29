"""pFedMe and FedMac: personal models beside a copy of the global model that follows them."""

from functools import partial

import pytest
import torch
from fakes.methods import assert_weighted_mean, built
from fakes.quadratics import Quadratics, built_at, network, point
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD

from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedMac, PFedMe, Sparsity
from pfl_lightning.models import MLP
from pfl_lightning.seeding import permutations


@pytest.fixture(autouse=True)
def float64(float32_by_default):
    torch.set_default_dtype(torch.float64)


def trained(make, **options):
    """Personal model and copy of one client with the loss (w - 2)^2 / 2 after local training from 1."""
    data = Quadratics([[2.0]])
    method = built_at(make(network=network, batch_size=1, **options), data, [1.0])
    examples = data.make_round(0).examples
    after, _ = method.local_update(examples, method.received(examples.ids), (0,))
    return after.under("personal").own["fc.weight"].item(), after.own["fc.weight"].item()


# by hand: theta = 1 - .2 (-1 + .1 tanh(10) - .5) = 1.28 and w = 1 - .4 * .5 (1 - 1.28) = 1.056, and so on
@pytest.mark.parametrize(
    ("steps", "theta", "w"), [(1, 1.28, 1.056), (2, 1.5096000001, 1.14672), (3, 1.7023520001, 1.2578464)]
)
def test_steps_of_fedmac_have_their_closed_form(steps, theta, w):
    sparsity = Sparsity(weight=0.1, smoothing=0.1)
    found = trained(FedMac, correlation=0.5, copy_lr=0.4, lr=0.2, sparsity=sparsity, epochs=steps)
    assert found == pytest.approx((theta, w), abs=2e-10)


# by hand: two steps theta = theta - .01 (theta - 2 + 15 (theta - w)), then w = w - .005 * 15 (w - theta)
@pytest.mark.parametrize(("steps", "theta", "w"), [(1, 1.0184, 1.00138), (2, 1.03176392, 1.003658794)])
def test_steps_of_pfedme_have_their_closed_form(steps, theta, w):
    found = trained(PFedMe, lr=0.01, inner_steps=2, epochs=steps)
    assert found == pytest.approx((theta, w), abs=1e-12)


def test_many_inner_steps_find_the_proximal_point_and_the_gradient_of_the_envelope():
    theta, w = trained(PFedMe, lr=0.01, inner_steps=300)
    assert theta == pytest.approx(17 / 16, abs=1e-12)  # (2 + 15 * 1) / 16
    assert (1 - w) / 0.005 == pytest.approx(-0.9375, abs=1e-10)  # 15 (1 - 17 / 16)


def test_many_inner_steps_of_fedmac_find_the_centre_plus_correlation_times_w():
    theta, w = trained(FedMac, correlation=0.5, copy_lr=0.1, lr=0.2, inner_steps=200)
    assert theta == pytest.approx(2.5, abs=1e-12)
    assert (1 - w) / 0.1 == pytest.approx(-0.75, abs=1e-10)  # .5 (1 - 2.5)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_inner_steps_end_at_the_tolerance(tolerance):
    """The error shrinks by the factor .84 in each step, so the last gradient lies just below the tolerance."""
    theta, _ = trained(PFedMe, lr=0.01, inner_steps=300, inner_tolerance=tolerance)
    squared_gradient = (16 * (theta - 17 / 16)) ** 2
    assert 0.84**2 * tolerance < squared_gradient <= tolerance


def test_the_tolerance_is_for_the_whole_objective_and_then_nothing_moves():
    """With a ridge of 1 and no pull the gradient is 2 theta - 2, zero at the start: not even momentum moves it."""
    ridge = {"weight_decay": 1.0, "inner_tolerance": 1e-6, "inner_steps": 50, "momentum": 0.9, "lr": 0.01}
    assert trained(PFedMe, proximity=0.0, **ridge)[0] == 1.0
    theta, _ = trained(PFedMe, proximity=1.0, **ridge | {"decay_biases": True, "momentum": 0.0, "inner_steps": 3000})
    assert (3 * theta - 3) ** 2 <= 1e-6


# by hand, after two steps of each client: w_1 = (1.1572, -.9476), w_2 = (.9476, -1.262)
@pytest.mark.parametrize(
    ("beta", "after"), [(1.0, (1.0524, -1.1048)), (2.0, (1.1048, -1.2096)), (0.5, (1.0262, -1.0524))]
)
def test_the_server_steps_towards_the_mean_of_the_copies(beta, after, fit):
    data = Quadratics([[2.0, 0.0], [0.0, -3.0]])
    options = {"correlation": 0.5, "copy_lr": 0.4, "lr": 0.2, "epochs": 2, "batch_size": 2, "weighting": "uniform"}
    method = FedMac(network=network, server_optimizer=partial(SGD, lr=beta), **options)
    fit(built_at(method, data, [1.0, -1.0]), data, 1)
    assert point(method) == pytest.approx(after, abs=1e-12)


@pytest.mark.filterwarnings("ignore:FedMac may diverge")  # it does not, since the loss has a curvature of 1
def test_fedmac_ends_at_the_mean_of_the_centres_inflated_by_the_correlation(fit):
    """w = mean(centre) + correlation w at a stationary point."""
    data = Quadratics([[2.0], [1.0]])
    options = {"correlation": 0.5, "copy_lr": 1.0, "lr": 0.5, "inner_steps": 60, "batch_size": 1}
    method = FedMac(network=network, **options)
    fit(built_at(method, data, [0.0]), data, 120, val_check_interval=120)
    assert point(method) == pytest.approx([3.0], abs=1e-8)


SAME = {"epochs": 3, "inner_steps": 2, "hidden": (40, 5)}


def after_two_rounds(make, ragged_data, fit, **options):
    method = built(make, ragged_data(), **options)
    trainer = fit(method, ragged_data(), 2, f"{make}{options}"[-60:].replace("/", ""))
    return method.network.state_dict(), float(trainer.callback_metrics["train/loss"])


def assert_close(one, other, atol=1e-12):
    (state, loss), (other_state, other_loss) = one, other
    assert loss == pytest.approx(other_loss, abs=1e-12)
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, other_state[name], atol=atol, rtol=0, msg=name)


@pytest.mark.parametrize("steps", [{}, {"epoch_steps": 1}], ids=str)
def test_fedmac_with_a_ridge_as_strong_as_the_correlation_is_pfedme(steps, ragged_data, fit):
    ridge = {"weight_decay": 0.7, "decay_biases": True}
    mac = after_two_rounds(partial(FedMac, correlation=0.7, copy_lr=0.4), ragged_data, fit, **SAME, **ridge, **steps)
    me = after_two_rounds(partial(PFedMe, proximity=0.7, copy_lr=0.4), ragged_data, fit, **SAME, **steps)
    assert_close(mac, me)


def test_a_copy_that_jumps_to_the_personal_model_makes_pfedme_fedavg(ragged_data, fit):
    options = {"epochs": 2, "hidden": (40, 5), "weight_decay": 0.0}
    me = after_two_rounds(partial(PFedMe, proximity=4.0, copy_lr=0.25), ragged_data, fit, **options)
    assert_close(me, after_two_rounds(FedAvg, ragged_data, fit, **options))


@pytest.mark.parametrize(
    "make", [partial(PFedMe, proximity=0.0), partial(FedMac, correlation=0.0)], ids=["pfedme", "fedmac"]
)
def test_without_a_tie_the_shared_model_stays(make, ragged_data, fit):
    method = built(make, ragged_data())
    start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    fit(method, ragged_data(), 2)
    for name, tensor in method.network.state_dict().items():
        torch.testing.assert_close(tensor, start[name], atol=1e-15, rtol=0)


@pytest.mark.parametrize("smoothed", [0.0, 0.02])
def test_a_round_of_fedmac_is_a_plain_loop(smoothed, ragged_data, fit):
    """Every client, one after the other, with the gradient of the whole objective by autograd."""
    data = ragged_data(val_fraction=0.0)
    sparsity = Sparsity(weight=smoothed, smoothing=0.1, floor="off")
    method = built(partial(FedMac, correlation=0.3, copy_lr=0.5, epochs=2, sparsity=sparsity), data, hidden=(40, 5))
    start = {name: tensor.clone() for name, tensor in method.network.state_dict().items()}
    fit(method, data, 1)
    examples = data.make_round(0).examples
    clients = [copy_by_hand(method.network, start, examples, client, smoothed) for client in range(len(examples))]
    assert_weighted_mean(method, start, clients, examples.counts)


def copy_by_hand(net, start, examples, client, smoothed):
    own = examples.rows(client, client + 1)
    inputs, targets = own.gather(own.positions)[0], own.targets(own.positions)[0]
    w, theta = ({name: tensor.clone() for name, tensor in start.items()} for _ in range(2))
    for epoch in range(2):
        key = (1, "train", 0, "all", "order", epoch)
        for batch in permutations(key, own.ids, own.counts, len(targets))[0].split(4):
            leaves = {name: tensor.requires_grad_() for name, tensor in theta.items()}
            loss = F.cross_entropy(functional_call(net, leaves, inputs[batch]), targets[batch])
            norm = sum((0.1 * (tensor / 0.1).cosh().log()).sum() for tensor in leaves.values())
            agreement = sum((tensor * w[name]).sum() for name, tensor in leaves.items())
            grads = torch.autograd.grad(loss + smoothed * norm - 0.3 * agreement, list(leaves.values()))
            with torch.no_grad():
                theta = {n: t - 0.1 * g for (n, t), g in zip(leaves.items(), grads, strict=True)}
                w = {name: tensor - 0.5 * 0.3 * (tensor - theta[name]) for name, tensor in w.items()}
    return w


@pytest.mark.parametrize("make", [PFedMe, FedMac])
def test_all_clients_are_evaluated_by_a_personal_model_trained_from_the_current_global_one(make, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(make, data, lr=0.05, epochs=3)
    fit(method, data, 1)
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    models = dict(method.evaluate(train, (0,)))
    assert tuple(models) == ("personal", "global")
    assert models["personal"].tree.keys() == models["global"].tree.keys()
    network = method.network.state_dict()
    assert all(torch.equal(tensor, network[name]) for name, tensor in models["global"].shared.items())
    losses = [method.engine.score(train, models[name])[1] / train.device_counts for name in models]
    assert (losses[0] < losses[1]).all()


@pytest.mark.filterwarnings("ignore:FedMac may diverge")
def test_a_diverged_run_names_round_method_and_rule_and_leaves_the_last_good_checkpoint(ragged_data, fit, tmp_path):
    torch.set_default_dtype(torch.float32)
    method = FedMac(correlation=20.0, copy_lr=0.05, lr=0.5, epochs=5, network=partial(MLP, hidden=(8,)))
    line = (
        r"^FedMac diverged by round \d+; keep correlation \* lr \* \(local steps\) \* \(rounds\) below 4 "
        r"by a smaller model.correlation or model.lr$"
    )
    with pytest.raises(PflError, match=line):
        fit(method, ragged_data(), 40)
    checkpoint = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert all(tensor.isfinite().all() for tensor in checkpoint["state_dict"].values())


# 3 epochs of 4 batches (the mean client has 15 samples), 10 rounds, lr .1: growth is 12 * correlation
@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"correlation": 0.4}, False),
        ({"correlation": 0.5}, True),
        ({"correlation": 0.5, "epoch_steps": 1}, False),
        ({"correlation": 0.5, "lr_decay": 0.5}, False),
        ({"correlation": 0.25, "inner_steps": 2}, True),
        ({"correlation": 0.5, "weight_decay": 0.6, "decay_biases": True}, False),
        ({"correlation": 0.5, "weight_decay": 0.6}, True),  # the biases have no bound
        ({"correlation": 0.3, "server_optimizer": partial(SGD, lr=2.0)}, True),
        ({"correlation": 0.3, "epoch_steps": 99}, False),
        ({"correlation": 0.5, "weight_decay": 0.5}, True),
    ],
    ids=str,
)
def test_a_run_that_may_diverge_is_warned_of_before_it_starts(options, warned, ragged_data, fit, recwarn):
    method = FedMac(copy_lr=0.1, lr=0.1, epochs=3, batch_size=4, network=partial(MLP, hidden=(8,)), **options)
    fit(method, ragged_data(val_fraction=0.0), 10)
    lines = [str(warning.message) for warning in recwarn if "FedMac may diverge" in str(warning.message)]
    assert len(lines) == warned


# by hand: two steps of theta = theta - .2 (theta - centre - .5 w), then w = w - .4 * .5 (w - theta)
@pytest.mark.parametrize(
    ("centre", "theta", "w"),
    [([2.0, 0.0], [1.546, -0.818], [1.1572, -0.9476]), ([0.0, -3.0], [0.818, -1.91], [0.9476, -1.262])],
)
def test_clients_of_fedmac_in_two_dimensions_have_their_closed_form(centre, theta, w):
    data = Quadratics([centre])
    method = FedMac(network=network, correlation=0.5, copy_lr=0.4, lr=0.2, epochs=2, batch_size=2)
    built_at(method, data, [1.0, -1.0])
    examples = data.make_round(0).examples
    after, _ = method.local_update(examples, method.received(examples.ids), (0,))
    assert after.under("personal").own["fc.weight"].flatten().tolist() == pytest.approx(theta, abs=1e-12)
    assert after.own["fc.weight"].flatten().tolist() == pytest.approx(w, abs=1e-12)
