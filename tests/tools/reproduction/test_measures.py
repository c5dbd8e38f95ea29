from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from fakes.panels import FAST, NEVER, SECONDS, SLOW, curve
from numpy.testing import assert_allclose
from reproduction import measures
from reproduction.measures import of_seed

from pfl_lightning.report import Curve
from pfl_lightning.runs.experiment import Experiment


def logging(**tags):
    """A curve of a run that has logged some tags."""
    return SimpleNamespace(runs=[SimpleNamespace(logged=pd.DataFrame(tags))])


def ending(**columns):
    """A curve of a run by what its clients got in the end."""
    return SimpleNamespace(final=lambda column, split="test": [np.array(columns[column])])


def seeds(*curves, measure=measures.time_ratio, **options):
    """A measure of curves for each of their seeds."""
    runs = zip(*(each.runs for each in curves), strict=True)
    return [measure(*(Curve([run], "m") for run in row), **options) for row in runs]


def test_of_a_perplexity_the_mean_and_the_logarithm_are_taken_over_the_clients():
    curve = ending(score=[2.0, 8.0])
    assert measures.perplexity(curve) == 5
    assert_allclose(measures.log_likelihood(curve, "val"), -np.log(4))


def test_accuracies_are_over_all_samples_of_the_mean_and_of_the_worst_client(run):
    models = {"m": [(30, 10), (30, 5), (15, 6)], "other": [(0, 0), (0, 0), (0, 0)]}
    found = [of_seed(name, [run(**models)], ["m"]) for name in ("best", "last", "final", "best_mean", "worst_client")]
    assert_allclose(found, [87.5, 52.5, 55, 75, 50])


def test_the_chosen_round_is_the_first_best_one_on_validation_samples(monkeypatch):
    scores = {"val": [99.0, 50.0, 70.0, 70.0], "test": [99.0, 60.0, 40.0, 90.0]}
    monkeypatch.setattr(measures, "over_samples", lambda curve, split="test": scores[split])
    assert measures.chosen(SimpleNamespace(rounds=[0, 1, 2, 3])) == 40
    assert measures.chosen(SimpleNamespace(rounds=[1, 2, 3, 4])) == 99


def test_a_run_that_ended_early_has_no_value(run):
    early = run(rounds=2, m=[(0, 0), (30, 5)])
    assert np.isnan([of_seed("best", [early], ["m"]), of_seed("best", [None], ["m"])]).all()


def test_the_time_ratio_is_to_95_percent_of_the_final_accuracy_of_the_method_without_doubling():
    # the fast curve is at 0.57 at its fourth evaluation, after 3 s, the slow one at its last, after 40 s; with 10 s of
    # communication these are 3 + 300 and 40 + 400
    assert seeds(FAST, SLOW) == pytest.approx([3 / 40] * 2)
    assert seeds(FAST, SLOW, communication=10.0) == pytest.approx([303 / 440] * 2)
    assert seeds(FAST, SLOW, percent=99) == pytest.approx([4 / 40] * 2)  # 0.594


def test_every_seed_has_the_accuracy_of_its_own_to_reach():
    slow = curve([0.1, 0.3, 0.5, 0.55, 0.6], [0.1, 0.2, 0.2, 0.2, 0.2], seconds=10 * SECONDS)
    fast = curve([0.1, 0.3, 0.5, 0.58, 0.6], [0.1, 0.2, 0.2, 0.2, 0.2])
    # the second seed is to reach 0.19, which both do at their second evaluation
    assert seeds(fast, slow) == pytest.approx([3 / 40, 1 / 10])


def test_what_is_never_reached_has_no_ratio_or_that_of_the_whole_run():
    assert np.isnan(seeds(NEVER, SLOW)).all()
    assert seeds(NEVER, SLOW, bound=True) == pytest.approx([4 / 40] * 2)
    both = curve([0.59, 0.3, 0.5, 0.55, 0.6])  # before the first round
    assert seeds(both, both) == [1.0, 1.0]


@pytest.mark.parametrize("logged", [range(1, 11), range(2, 11, 2), [10]], ids=str)
def test_bits_are_those_of_the_second_half_of_the_rounds_however_often_they_are_logged(logged):
    dense_bits = 2 * 64 * 79510  # up and down in each round, until half as much from round 5 on
    counts = {at: dense_bits * (at if at <= 5 else 5 + (at - 5) / 2) for at in logged}
    # of the rounds 5 to 10, or 4 to 10, or all
    found = measures.link_bits(logging(**{"bits/paper": counts}), 79510)
    assert found == pytest.approx({10: 0.5, 5: 3.5 / 6, 1: 0.75}[len(logged)])
    assert measures.density(logging(**{measures.DENSITY: {5: 0.9, 10: 0.4}})) == 40


def test_deviations_are_over_clients_and_over_the_small_ones_of_them():
    # of 1, 1, 3, 3 it is 1, of 0, 4, 4, 0 it is 2; the errors of the two smallest of four are 0.1 and 0.5
    even, uneven = ending(loss=[1.0, 1, 3, 3]), ending(loss=[0.0, 4, 4, 0])
    assert measures.loss_deviation(even) == 1
    assert measures.loss_deviations(uneven, even) == 2
    errors = ending(error=[0.9, 0.1, 0.0, 0.5], samples=[50, 10, 40, 20])
    assert measures.error_deviation(errors, share=0.5) == pytest.approx(20)


def test_errors_and_losses_are_percentiles_as_numpy_has_them():
    assert measures.error(ending(error=np.arange(11) / 50), "p90") == pytest.approx(18)
    # 90 % of the samples are reached by the second device of four in the first case, by the last in the second
    for samples, loss in ([45, 45, 5, 5], 2.0), ([10, 10, 10, 70], 4.0):
        assert measures.train_loss(ending(loss=[1.0, 2.0, 3.0, 4.0], samples=samples), "p90") == loss
    val = ending(loss=[1.0, 2.0], error=[0.1, 0.5])
    assert measures.val_loss(val) == 1.5
    assert measures.val_error(val, "worst") == 50


def test_sums_are_counted_until_a_share_of_the_own_end():
    means = [0.1, 0.5, 0.8, *[0.8] * 8]
    logged = pd.DataFrame({"sums/calls": np.arange(0, 201, 20), "test/m/accuracy/mean": means}, np.arange(0, 101, 10))
    one = Curve([replace(SLOW.runs[0], rounds=logged.index.to_numpy(), logged=logged)], "m")
    assert (measures.sums_to(one, 0.95), measures.sums(one, 0.1), measures.sums_per_round(one)) == (40, 20, 2)


@pytest.mark.parametrize(("half", "share"), [(None, 0.5), (0, 0.4), (1, 0.6)])
def test_a_share_of_the_pool_is_kept_in_the_rounds(half, share):
    run = SimpleNamespace(settings={"data.participation.pool_size": 10})
    assert measures.share_kept(SimpleNamespace(runs=[run], cohorts=pd.DataFrame([4, 4, 6, 6])), half) == share


@pytest.mark.parametrize(("left", "power"), [(1e-9, -9), (1e-5, -5), (0.0, -99)])
def test_mixing_leaves_a_share_of_the_error_of_consensus(left, power):
    before = np.array([2.0, 4.0, 2.0])
    after = left * before * (0.1, 1, 0.5)
    tags = {"consensus/before": dict(enumerate(before)), "consensus/after": dict(enumerate(after))}
    assert measures.mixing_leaves(logging(**tags)) == pytest.approx(power)


@pytest.fixture
def cosines(monkeypatch, tmp_path):
    """The cosines of a run by its clients' class counts and its method's heads and bodies."""

    def make(counts, **rows):
        method = SimpleNamespace(
            parts={"head": {"head"}, "body": {"body", "statistic"}},
            engine=SimpleNamespace(trainable={"head", "body"}),
            clients=SimpleNamespace(inner_products=lambda names: rows[names[0]] @ rows[names[0]].T),
        )
        monkeypatch.setattr("pfl_lightning.Run", lambda folder: SimpleNamespace(method=lambda: method))
        monkeypatch.setattr(measures, "class_counts", lambda folder: np.array(counts))
        measures.cosines_of.cache_clear()
        return SimpleNamespace(runs=[SimpleNamespace(folder=tmp_path)])

    yield make
    measures.cosines_of.cache_clear()


def test_the_cosines_of_a_run_are_of_its_class_counts_heads_and_bodies(cosines):
    rows = {"head": torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "body": torch.tensor([[1.0, 1.0], [1.0, 0.0]])}
    curve = cosines([[3, 0], [4, 3]], **rows)
    found = measures.cosines_of(curve.runs[0].folder)
    for entries, cosine in zip(found.values(), (0.8, 0.0, 0.5**0.5), strict=True):
        torch.testing.assert_close(entries.double(), torch.tensor([[1, cosine], [cosine, 1]]).double())
    assert measures.bodies_agree(curve) == pytest.approx((1 + 0.5**0.5) / 2)


@pytest.mark.parametrize("sign", [1, -1])
def test_heads_follow_the_data_or_not(sign, cosines):
    directions = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.1, 0.9]])
    heads = directions if sign > 0 else directions.roll(1, 0)
    curve = cosines((100 * directions).int().tolist(), head=heads, body=directions)
    assert sign * measures.heads_follow_data(curve) > 0


def test_the_class_counts_of_a_run_are_those_of_its_data(tmp_path):
    experiment = Experiment.from_settings(
        "quickstart", "--data.num_clients=7", "--trainer.max_steps=1", f"--trainer.default_root_dir={tmp_path}"
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(experiment.settings))
    experiment.data.setup()
    np.testing.assert_array_equal(measures.class_counts(tmp_path), experiment.data.class_counts()["train"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("training devices", 3),
        ("test devices", 2),
        ("smallest training device", 60),
        ("median training device", 100),
        ("largest training device", 140),
        ("smallest share", 0.6),
    ],
)
def test_numbers_of_the_split_are_those_of_the_clients_that_train(name, value):
    data = SimpleNamespace(training_counts=np.array([140, 60, 100]), num_clients=5)
    assert measures.SPLIT[name](data) == value


def test_tails_are_the_same_in_a_share_of_the_rounds():
    tails = {"train/tail_by_sums": [5, 5, 4, 5], "train/tail_by_losses": [5, 3, 4, 5]}
    assert measures.same_tails(logging(**tails)) == 0.75


@pytest.mark.parametrize(
    ("losses", "finished", "first"),
    [
        ([1.0, 1.0, 2.4, 1.0], True, 3),  # guessing one of ten classes has a loss of 2.303
        ([1.0, 1.0, 1.0, 1.0], True, np.inf),
        ([1.0, 1.1], False, 3),
        ([], False, 1),
    ],
)
def test_a_run_diverges_in_the_round_that_is_worse_than_guessing_or_after_its_last(losses, finished, first):
    logged = pd.DataFrame({"train/loss": dict(enumerate(losses, start=1))}, dtype=float)
    run = SimpleNamespace(logged=logged, rounds=[4 if finished else 0], settings={"trainer.max_steps": 4})
    assert of_seed("first_diverged", [run], ["m"]) == first
    assert of_seed("first_diverged", [None], ["m"]) == 1


def test_new_clients_of_a_run_are_tested_once(monkeypatch, tmp_path):
    asked = []

    def test(folder, new_clients, new_samples, new_head_steps):
        asked.append((new_clients, new_samples, new_head_steps))
        rows = [("test", "stored", 0.0), *(("test", "finetuned", new_clients / 50 * each) for each in (0, 1))]
        return pd.DataFrame([*rows, ("train", "finetuned", 0.0)], columns=["split", "model", "accuracy"])

    monkeypatch.setattr("pfl_lightning.Run", lambda folder: SimpleNamespace(test=partial(test, folder)))
    one = SimpleNamespace(runs=[SimpleNamespace(folder=tmp_path)])
    ways = [(16, None, None), (64, None, None), (16, 5, None), (16, None, 5)]
    for way in (*ways, *ways):
        assert measures.new_clients(one, *way) == way[0]
    assert asked == ways


@pytest.mark.parametrize(("norm", "seconds"), [(5.0, 2.0), (1.5, 4.0), (0.5, np.nan)])
def test_a_gradient_norm_is_reached_at_its_first_evaluation_below(norm, seconds):
    logged = pd.DataFrame({"train/gradient_norm": [3.0, np.nan, 1.0]}, index=[2, 3, 4])
    one = SimpleNamespace(
        runs=[SimpleNamespace(logged=logged)], rounds=np.array([0, 2, 4]), times=lambda latency: np.array([[0, 2, 4]])
    )
    np.testing.assert_equal(measures.seconds_to_norm(one, norm, 0.0), seconds)
    assert measures.final_norm(one) == 1
