from functools import partial
from itertools import pairwise

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from fakes.loops import cross_entropy, samples_of
from fakes.methods import built, distance, make_method, tensors
from fakes.quadratics import Quadratics, network, point
from plain_methods import reach_quantile

from pfl_lightning.callbacks import PercentileErrors
from pfl_lightning.errors import PflError
from pfl_lightning.methods import DeltaFL, FedAvg, delta_fl
from pfl_lightning.metrics import smooth_quantile, superquantile
from pfl_lightning.models import MLP
from pfl_lightning.server import Aggregator, SecureAggregator
from pfl_lightning.system import Participation

pytestmark = pytest.mark.usefixtures("float64")


def losses_by_hand(method, state, examples):
    """Mean cross-entropy of a model on each client's samples, one client after the other."""
    clients = (samples_of(examples.rows(row, row + 1)) for row in range(len(examples)))
    return [float(cross_entropy(method.network, state, *samples)) for samples in clients]


@pytest.mark.parametrize("options", [{}, {"tail": "dual"}, {"tail": "dual", "smoothing": 0.5}])
def test_conformity_one_is_fedavg_bit_for_bit(options, ragged_data, train):
    data = partial(ragged_data, participation=Participation(pool_size=4))
    fedavg, whole = (train(make, 3, data()) for make in (FedAvg, partial(DeltaFL, conformity=1.0, **options)))
    assert distance(fedavg, whole) == 0
    assert fedavg.accounting.clock == whole.accounting.clock


def test_the_round_after_a_skipped_first_one_chooses_the_threshold(ragged_data, fit, monkeypatch):
    data = ragged_data()
    data.setup("fit")
    lost, after = data.make_round(0), data.make_round(1)
    lost = lost.drop(torch.ones(6, dtype=torch.bool))
    monkeypatch.setattr(data, "make_round", [lost, after].__getitem__)
    method = built(partial(DeltaFL, conformity=0.3, quantile_every=4), data)
    losses, counts = losses_by_hand(method, method.network.state_dict(), after.examples), after.examples.counts.numpy()
    fit(method, data, 2, bare=True)
    in_tail = reach_quantile(losses, counts, 0.3)
    assert 0 < sum(in_tail) < 6
    assert method.threshold.item() == pytest.approx(min(loss for loss, one in zip(losses, in_tail, strict=True) if one))


def mean_by_fedavg(batch, data):
    """The shared model after a round of FedAvg by some clients with some weights."""
    reference = built(FedAvg, data)
    return reference.train_clients(batch).mean


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("conformity", [0.8, 0.5, 0.1])
def test_a_round_is_fedavg_over_the_tail_of_the_losses(conformity, weighting, ragged_data, fit):
    data = ragged_data(num_clients=7, val_fraction=0.0)
    data.setup()
    method = built(partial(DeltaFL, conformity=conformity, weighting=weighting), data)
    batch = data.make_round(0)
    counts = batch.examples.counts.numpy() if weighting == "samples" else np.ones(7)
    tail = reach_quantile(losses_by_hand(method, tensors(method.network), batch.examples), counts, conformity)
    assert 0 < sum(tail) < 7
    trainer = fit(method, data, 1, bare=True)
    share, chosen = torch.tensor(counts * tail), torch.tensor(tail)
    alone = batch._replace(examples=batch.examples.take(chosen), weights=share[chosen] / share.sum())
    assert distance(method.network, mean_by_fedavg(alone, data)) < 1e-12
    assert trainer.callback_metrics["system/cohort"] == sum(tail)


def test_a_dual_tail_counts_the_client_at_the_border_as_far_as_it_is_needed(ragged_data, fit):
    data = ragged_data(num_clients=4, val_fraction=0.0)
    data.setup()
    method = built(partial(DeltaFL, conformity=0.6, tail="dual", weighting="uniform"), data)
    batch, weights = data.make_round(0), torch.zeros(4)
    worst_first = np.argsort(losses_by_hand(method, tensors(method.network), batch.examples))[::-1]
    weights[worst_first[:3].copy()] = torch.tensor([0.25, 0.25, 0.1]) / 0.6
    fit(method, data, 1, bare=True)
    assert distance(method.network, mean_by_fedavg(batch._replace(weights=weights), data)) < 1e-12


@pytest.mark.parametrize(("epochs", "steps", "visited"), [(2, None, 99), (1, 1, 4)])
def test_all_participants_report_on_all_samples_before_the_tail_trains(epochs, steps, visited, ragged_data, fit):
    data = ragged_data(num_clients=7, val_fraction=0.0)
    data.setup()
    method = built(partial(DeltaFL, conformity=0.1, epochs=epochs, epoch_steps=steps), data)
    batch = data.make_round(0)
    losses, counts = losses_by_hand(method, tensors(method.network), batch.examples), batch.examples.counts.numpy()
    fit(method, data, 1, bare=True)
    # a third of an epoch over all samples, where an epoch of the round visits at most so many
    reports = batch.times / epochs * counts / np.minimum(counts, visited) / 3
    assert method.accounting.clock.compute == pytest.approx(reports.max() + batch.times[np.argmax(losses)])


def test_a_smoothed_tail_has_clients_in_pure_bfloat16_too(ragged_data, fit):
    torch.set_default_dtype(torch.bfloat16)  # of the data, too
    cohorts = []
    for seed in range(3):
        method = DeltaFL(network=partial(MLP, hidden=(5,)), conformity=0.1, tail="dual", smoothing=1e-3)
        trainer = fit(method, ragged_data(seed=seed), 3, precision="bf16-true", bare=True)
        cohorts.append(int(trainer.callback_metrics["system/cohort"]))
    assert min(cohorts) >= 1


@pytest.mark.parametrize("options", [{}, {"tail": "dual", "smoothing": 100.0}], ids=["above 0", "below 0"])
def test_the_threshold_is_kept_between_its_computations(options, train):
    kept = partial(DeltaFL, quantile_every=3, **options)
    thresholds = [float(train(kept, rounds, lr=1e-4).threshold) for rounds in (1, 2, 3, 4)]
    assert (thresholds[0] < 0) == bool(options)
    assert thresholds[0] == thresholds[1] == thresholds[2] != thresholds[3]


def test_a_threshold_that_nobody_reaches_is_computed_anew(ragged_data):
    data = ragged_data()
    data.setup()
    method = built(partial(DeltaFL, quantile_every=100), data)
    method.log = lambda *_: None
    method.threshold.fill_(1e6)
    method.accounting.clock.rounds = 1
    batch = data.make_round(1)
    assert 0 < len(method.select_clients(batch).examples) < len(batch.examples)
    assert method.threshold < 1e6


@pytest.mark.parametrize(("tail", "smoothing"), [("hard", 0.0), ("dual", 0.0), ("dual", 0.1)])
def test_clients_with_equal_losses_are_all_in_the_tail(tail, smoothing, ragged_data, fit):
    data = ragged_data()  # a linear model without a bias starts at zero: every loss is log 3
    trainer = fit(DeltaFL(0.3, tail, smoothing, network=network), data, 1, bare=True)
    assert trainer.callback_metrics["system/cohort"] == data.num_clients


def test_one_client_is_its_own_tail(ragged_data, train):
    data = partial(ragged_data, participation=Participation(pool_size=1))
    fedavg, alone = (train(make, 2, data()) for make in (FedAvg, partial(DeltaFL, conformity=0.01)))
    assert distance(fedavg, alone) == 0


def test_a_loss_that_is_not_finite_stops_the_run(ragged_data, fit):
    method = built(DeltaFL, ragged_data())
    method.network.fc1.weight.data.fill_(torch.nan)
    with pytest.raises(PflError, match=r"^DeltaFL diverged by round 0; try a model.local.lr below 0.1$"):
        fit(method, ragged_data(), 1, bare=True)


@pytest.mark.slow
@pytest.mark.parametrize("sums", [Aggregator, SecureAggregator])
@pytest.mark.parametrize("conformity", [0.8, 0.3])
def test_a_quantile_from_sums_finds_the_same_tails(conformity, sums, train):
    exact, summed = (
        train(partial(DeltaFL, conformity=conformity, quantile=quantile), 4, aggregator=sums())
        for quantile in ("exact", "sums")
    )
    assert distance(exact.network, summed.network) == 0
    logged = summed.trainer.callback_metrics
    assert abs(logged["train/threshold_error"]) <= 1e-5
    assert 10 * 4 < logged["sums/calls"] <= 102 * 4


@pytest.mark.parametrize("off", [0.0, 10.0])
def test_both_tails_are_logged_and_that_by_sums_trains(off, ragged_data, fit, monkeypatch):
    data = ragged_data(val_fraction=0.0)
    data.setup()
    method = built(partial(DeltaFL, conformity=0.5, quantile="sums"), data)
    batch = data.make_round(0)
    losses = losses_by_hand(method, tensors(method.network), batch.examples)
    exact = sum(reach_quantile(losses, batch.examples.counts.numpy(), 0.5))
    by_sums = len(losses) if off else exact  # a threshold below all losses keeps everyone
    assert 0 < exact < len(losses)
    found = delta_fl.quantile_from_sums
    monkeypatch.setattr(delta_fl, "quantile_from_sums", lambda *arguments: found(*arguments) - off)
    logged = fit(method, data, 1, bare=True).callback_metrics
    assert [int(logged[f"train/tail_by_{what}"]) for what in ("losses", "sums")] == [exact, by_sums]
    assert int(logged["system/cohort"]) == by_sums


def test_clients_outside_the_tail_upload_nothing_in_the_clear_and_zeros_in_secret(train):
    uploaded, tails = {}, {}
    for sums in (Aggregator, SecureAggregator):
        for conformity in (1.0, 0.6):
            method = train(partial(DeltaFL, conformity=conformity), 1, aggregator=sums())
            uploaded[sums, conformity] = method.aggregator.bytes
            tails[conformity] = int(method.trainer.callback_metrics["system/cohort"])
    assert 1 < tails[0.6] < tails[1.0]
    assert uploaded[Aggregator, 1.0] * tails[0.6] == uploaded[Aggregator, 0.6] * tails[1.0]
    assert uploaded[SecureAggregator, 1.0] == uploaded[SecureAggregator, 0.6]


def test_a_tail_of_one_client_trains_in_the_clear_and_is_skipped_in_secret(train):
    start = tensors(train(DeltaFL, 1, lr=1e-30).network)
    for sums, moves in ((Aggregator, True), (SecureAggregator, False)):
        method = train(partial(DeltaFL, conformity=1e-6), 1, aggregator=sums())
        assert int(method.trainer.callback_metrics["system/cohort"]) == moves
        assert (distance(method.network, start) > 1e-6) == moves
        assert method.accounting.clock.rounds == 1


def test_sums_for_the_quantile_are_counted_in_a_round_that_is_skipped(train):
    method = train(partial(DeltaFL, conformity=0.01, quantile="sums"), 1, aggregator=SecureAggregator())
    assert int(method.trainer.callback_metrics["system/cohort"]) == 0
    assert method.accounting.ledger.up == 8 * method.aggregator.bytes > 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"smoothing": 0.1}, "model.smoothing: 0.1 is not possible with a hard tail; allowed: 0"),
        ({"tail": "dual", "quantile": "sums"}, "model.quantile: sums is not possible with a dual tail; allowed: exact"),
    ],
)
def test_options_that_exclude_each_other(options, line):
    with pytest.raises(PflError, match=f"^{line}$"):
        DeltaFL(**options)


OBTUSE, ACUTE = [(0.0, 0.0), (4.0, 0.0), (1.0, 1.0)], [(0.0, 0.0), (4.0, 0.0), (1.0, 3.0)]


# losses |w - mean|^2 / 2 + 1; docs/evidence/derivations.md, Three Gaussians: the centroid; the mean with the weights
# (5, 5, 2) / 12 of the exact tail; the midpoint of the longest side; the circumcentre. The conformity 1/2 needs
# smoothing, or the point swings between sides.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("means", "conformity", "smoothing", "lr", "rounds", "expected", "value"),
    [
        (OBTUSE, 1.0, 0.0, 0.5, 30, (5 / 3, 1 / 3), 23 / 9),
        (OBTUSE, 0.8, 0.0, 0.5, 40, (11 / 6, 1 / 6), 2.8055556),
        (OBTUSE, 2 / 3, 0.0, 0.5, 40, (2.0, 0.0), 3.0),
        (OBTUSE, 1 / 2, 0.5, 0.1, 60, (2.0, 0.0), 3.0),
        (ACUTE, 2 / 3, 0.1, 0.02, 200, (2.0, 1.0), 3.5),
    ],
)
def test_the_means_of_three_gaussians_are_served_as_the_theory_says(
    means, conformity, smoothing, lr, rounds, expected, value, fit
):
    rule = {"network": network, "batch_size": 4, "lr": lr, "weight_decay": 0.0}
    method = make_method(partial(DeltaFL, conformity, "dual", smoothing), **rule)
    data = Quadratics(means, noise=1.0)
    trainer = fit(method, data, rounds, val_check_interval=rounds, callbacks=[PercentileErrors(tails=(2 / 3,))])
    found = torch.tensor(point(method))
    torch.testing.assert_close(found, torch.tensor(expected), atol=max(1e-6, smoothing**2), rtol=0)
    losses = (found - torch.tensor(means)).square().sum(1) / 2 + 1
    tail = superquantile(losses, torch.ones(3), conformity).item()
    assert value - 1e-6 <= tail <= value + 1e-6 + smoothing / (2 * conformity)
    logged = trainer.callback_metrics["test/global/rmse/superquantile_66.6667"].item()
    assert logged == pytest.approx(superquantile((2 * losses).sqrt(), torch.ones(3), 2 / 3).item(), abs=1e-6)


def test_full_batches_decrease_the_smoothed_superquantile_in_each_round(ragged_data, fit):
    data = ragged_data(num_clients=6, val_fraction=0.0)
    rule = {"network": network, "batch_size": 100, "lr": 0.05, "weight_decay": 0.0}
    method = make_method(partial(DeltaFL, 0.5, "dual", 0.5), weighting="samples", **rule)
    values = []

    class Objective(pl.Callback):
        """Remembers the smoothed objective behind each round."""

        def on_train_batch_end(self, trainer, pl_module, *_):
            examples = data.make_round(0).examples
            losses = torch.tensor(losses_by_hand(method, tensors(method.network), examples))
            weights = examples.counts / examples.counts.sum()
            eta = smooth_quantile(losses, weights, 0.5, 0.5)
            excess = (losses - eta).clamp(min=0)
            pieces = torch.where(excess < 0.5, excess.square(), excess - 0.25)  # smoothing 1/2
            values.append(float(eta + (weights * pieces).sum() / 0.5))

    fit(method, data, 30, callbacks=[Objective()], bare=True)
    assert all(after < before for before, after in pairwise(values))
    assert values[-1] < 0.95 * values[0]
