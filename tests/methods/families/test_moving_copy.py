"""pFedMe and FedMac: personal models beside a copy of the global model that follows them."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fakes.loops import plain_rounds
from fakes.methods import assert_shared, built, distance, make_method, tensors
from fakes.quadratics import Quadratics, built_at, network, point
from plain_methods import PlainFedMac
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from pfl_lightning.client import LocalTraining
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedMac, PFedMe, Sparsity
from pfl_lightning.models import MLP

pytestmark = pytest.mark.usefixtures("float64")


def trained(make, **options):
    """Personal model and copy of one client with the loss (w - 2)^2 / 2 after local training from 1."""
    data = Quadratics([[2.0]])
    method = built_at(make_method(make, network=network, batch_size=1, **options), data, [1.0])
    examples = data.make_round(0).examples
    after, _ = method.local_update(examples, method.received(examples.ids), (0,))
    return [after.under("personal").own["fc.weight"].item(), after.own["fc.weight"].item()]


# by hand, of FedMac: theta = 1 - .2 (-1 + .1 tanh(10) - .5) = 1.28 and w = 1 - .4 * .5 (1 - 1.28) = 1.056, and so on;
# of pFedMe: two steps theta = theta - .01 (theta - 2 + 15 (theta - w)), then w = w - .005 * 15 (w - theta)
PENALISED = partial(FedMac, correlation=0.5, copy_lr=0.4, lr=0.2, sparsity=Sparsity(weight=0.1, smoothing=0.1))
TWO_STEPS = partial(PFedMe, lr=0.01, inner_steps=2)


@pytest.mark.parametrize(
    ("make", "epochs", "theta", "w"),
    [
        (PENALISED, 1, 1.28, 1.056),
        (PENALISED, 2, 1.5096000001, 1.14672),
        (PENALISED, 3, 1.7023520001, 1.2578464),
        (TWO_STEPS, 1, 1.0184, 1.00138),
        (TWO_STEPS, 2, 1.03176392, 1.003658794),
    ],
)
def test_steps_have_their_closed_form(make, epochs, theta, w):
    assert trained(make, epochs=epochs) == pytest.approx([theta, w], abs=2e-10)


@pytest.mark.parametrize(("curvature", "correlation"), [(1.0, 0.5), (2.0, 0.5), (4.0, 3.0), (1.0, 1.0), (1.0, 2.0)])
def test_the_objective_of_fedmac_is_concave_where_the_correlation_is_above_the_curvature(curvature, correlation):
    """Its slope at the copy w is c (w - theta), so its curvature is c - c^2 / mu; a step is 0.1 times the slope."""

    def slope(start):
        data = Quadratics([[2.0]], curvature)
        rule = {"correlation": correlation, "copy_lr": 0.1, "lr": 0.2, "inner_steps": 200, "batch_size": 1}
        method = built_at(make_method(FedMac, network=network, **rule), data, [start])
        cohort = data.make_round(0).examples
        moved, _ = method.local_update(cohort, method.received(cohort.ids), (0,))
        return (start - moved.own["fc.weight"].item()) / 0.1

    assert slope(1.0) - slope(0.0) == pytest.approx(correlation - correlation**2 / curvature, abs=1e-5)


def test_the_copy_follows_the_schedule_of_the_rates():
    def step(**options):
        data = Quadratics([[2.0]])
        method = built_at(make_method(PFedMe, network=network, batch_size=1, inner_steps=2, **options), data, [1.0])
        method.accounting.clock.rounds = 1
        examples = data.make_round(1).examples
        return method.local_update(examples, method.received(examples.ids), (0,))[0].own["fc.weight"].item()

    assert step(lr=0.02, copy_lr=0.01, lr_decay=0.5) == pytest.approx(1.00138, abs=1e-12)  # that of the rates halved


# the proximal point (2 + 15 * 1) / 16, and the gradient of the envelope, 15 (1 - 17 / 16); the centre plus .5 w
@pytest.mark.parametrize(
    ("make", "rates", "theta", "gradient"),
    [
        (PFedMe, {"copy_lr": 0.005, "lr": 0.01}, 17 / 16, -0.9375),
        (partial(FedMac, correlation=0.5), {"copy_lr": 0.1, "lr": 0.2}, 2.5, -0.75),
    ],
)
def test_many_inner_steps_find_the_optimum_and_the_copy_follows_its_gradient(make, rates, theta, gradient):
    found, w = trained(make, inner_steps=200, **rates)
    assert found == pytest.approx(theta, abs=1e-12)
    assert (1 - w) / rates["copy_lr"] == pytest.approx(gradient, abs=1e-10)


# by hand, after two steps theta = theta - .2 (theta - centre - .5 w), w = w - .4 * .5 (w - theta) of each client:
# w_1 = (1.1572, -.9476), w_2 = (.9476, -1.262)
@pytest.mark.parametrize(
    ("beta", "after"), [(1.0, (1.0524, -1.1048)), (2.0, (1.1048, -1.2096)), (0.5, (1.0262, -1.0524))]
)
def test_the_server_steps_towards_the_mean_of_the_copies(beta, after, fit):
    data = Quadratics([[2.0, 0.0], [0.0, -3.0]])
    options = {"correlation": 0.5, "copy_lr": 0.4, "lr": 0.2, "epochs": 2, "batch_size": 2, "weighting": "uniform"}
    method = make_method(FedMac, network=network, server_optimizer=partial(SGD, lr=beta), **options)
    fit(built_at(method, data, [1.0, -1.0]), data, 1, bare=True)
    assert point(method) == pytest.approx(after, abs=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FedMac may diverge")  # it does not, since the loss has a curvature of 1
def test_fedmac_ends_at_the_mean_of_the_centres_inflated_by_the_correlation(fit):
    """w = mean(centre) + correlation w at a stationary point."""
    data = Quadratics([[2.0], [1.0]])
    options = {"correlation": 0.5, "copy_lr": 1.0, "lr": 0.5, "inner_steps": 30, "batch_size": 1}
    method = make_method(FedMac, network=network, **options)
    fit(built_at(method, data, [0.0]), data, 75, bare=True)  # the error shrinks by a quarter in each round
    assert point(method) == pytest.approx([3.0], abs=1e-8)


SAME = {"epochs": 3, "inner_steps": 2, "hidden": (40, 5)}


def assert_close(one, other):
    assert distance(one.network, other.network) < 1e-12
    losses = [float(method.trainer.callback_metrics["train/loss"]) for method in (one, other)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


@pytest.mark.parametrize("steps", [{}, {"epoch_steps": 1}], ids=str)
def test_fedmac_with_a_ridge_as_strong_as_the_correlation_is_pfedme(steps, train):
    options, ridge = {"copy_lr": 0.4, **SAME, **steps}, {"weight_decay": 0.7, "decay_biases": True}
    assert_close(
        train(partial(FedMac, correlation=0.7), 2, **options, **ridge),
        train(partial(PFedMe, proximity=0.7), 2, **options),
    )


def test_a_copy_that_jumps_to_the_personal_model_makes_pfedme_fedavg(train):
    options = {"epochs": 2, "hidden": (40, 5), "weight_decay": 0.0}
    assert_close(train(partial(PFedMe, proximity=4.0, copy_lr=0.25), 2, **options), train(FedAvg, 2, **options))


@pytest.mark.parametrize(
    "make", [partial(PFedMe, proximity=0.0), partial(FedMac, correlation=0.0)], ids=["pfedme", "fedmac"]
)
def test_without_a_tie_the_shared_model_stays(make, ragged_data, train):
    assert distance(built(make, ragged_data()).network, train(make, 2).network) < 1e-15


@pytest.mark.parametrize("smoothed", [0.0, 0.02])
def test_a_round_of_fedmac_is_a_plain_loop(smoothed, ragged_data, fit):
    class Smoothed(PlainFedMac):
        def tied(self, model, center):
            usual = super().tied(model, center)

            def loss(*batch):
                norm = sum((0.1 * (tensor / 0.1).cosh().log()).sum() for tensor in model.parameters())
                return usual(*batch) + smoothed * norm

            return loss

    data = ragged_data(val_fraction=0.0)
    sparsity = Sparsity(weight=smoothed, smoothing=0.1, floor="off")
    options = {"correlation": 0.3, "copy_lr": 0.5, "epochs": 2}
    method = built(partial(FedMac, sparsity=sparsity, **options), data, hidden=(40, 5))
    start = tensors(method.network)
    plain = plain_rounds(Smoothed, method, data, 1, **options)
    fit(method, data, 1, bare=True)
    assert distance(start, method.network) > 1e-2
    assert distance(plain.network, method.network) < 1e-12
    assert_shared(method, start, plain.network.state_dict())


@pytest.mark.parametrize("make", [PFedMe, FedMac])
def test_all_clients_are_evaluated_by_a_personal_model_trained_from_the_current_global_one(make, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    method = built(make, data, lr=0.05, epochs=3)
    fit(method, data, 1, bare=True)
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    models = dict(method.evaluate(train, (0,)))
    assert tuple(models) == ("personal", "global")
    assert models["personal"].tree.keys() == models["global"].tree.keys()
    assert distance(models["global"].shared, method.network) == 0
    losses = [method.engine.mean_losses(train, models[name]) for name in models]
    assert (losses[0] < losses[1]).all()


@pytest.mark.parametrize("make", [PFedMe, FedMac])
def test_personal_models_are_evaluated_at_the_whole_rate_when_a_schedule_has_ended(make, ragged_data, fit):
    data = ragged_data(val_fraction=0.0)
    ends = built(make, data, lr=0.05, lr_schedule=partial(CosineAnnealingLR, T_max=2))
    fit(ends, data, 2, bare=True)
    assert ends.rate(1.0) == 0
    constant = built(make, data, lr=0.05)
    constant.network.load_state_dict(ends.network.state_dict())
    constant.accounting.clock.rounds = 2
    train = data.make_eval_batch(data.evaluation_order[:6]).train
    found, wanted = (dict(method.evaluate(train, (0,)))["personal"] for method in (ends, constant))
    assert distance(found.tree, wanted.tree) == 0
    assert distance({name: tensor[0] for name, tensor in found.own.items()}, ends.network) > 0


@pytest.mark.filterwarnings("ignore:FedMac may diverge")
def test_a_diverged_run_names_round_method_and_rule_and_leaves_the_last_good_checkpoint(ragged_data, fit, tmp_path):
    torch.set_default_dtype(torch.float32)
    method = FedMac(
        correlation=20.0, copy_lr=0.05, local=LocalTraining(lr=0.5, epochs=5), network=partial(MLP, hidden=(8,))
    )
    line = (
        r"^FedMac diverged by round \d+; keep correlation \* lr \* \(local steps\) \* \(rounds\) below 4 "
        r"by a smaller model.correlation or model.local.lr$"
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
    ],
    ids=str,
)
def test_a_run_that_may_diverge_is_warned_of_before_it_starts(options, warned, ragged_data, recwarn):
    data = ragged_data(val_fraction=0.0)
    data.setup()
    method = built(partial(FedMac, copy_lr=0.1, epochs=3), data, **options)
    method.trainer = SimpleNamespace(datamodule=data, max_steps=10)
    method.on_fit_start()
    assert bool(recwarn) == warned
