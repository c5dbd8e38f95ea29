from math import inf, isnan

import numpy as np
import pytest
from reproduction.srpfl import rates

ROUNDS = rates.ROUNDS["femnist"]


@pytest.fixture
def femnist(place):
    return place("femnist", seeds=(1, 2))


@pytest.fixture
def write(write_run):
    """Writes a run of FedRep with the training loss of its rounds, and the correct ones of 100 samples at the end."""

    def run(rate, seed, losses, correct):
        is_whole = len(losses) == ROUNDS
        evaluated = ["0.5", *[""] * (len(losses) - 1), "0.5" if is_whole else ""]
        logged = zip(range(len(losses) + 1), ["", *losses], evaluated, strict=True)
        metrics = [(at, 1.0, loss, mean) for at, loss, mean in logged]
        ends = [(0, 50), *([(ROUNDS, correct)] if is_whole else [])]
        clients = [(at, split, "finetuned", 0, 100, hits, 1.0) for at, hits in ends for split in ("val", "test")]
        header = ("round", "time/compute", "train/loss", "test/finetuned/accuracy/mean")
        write_run(f"as_it_is/fedrep,lr={rate}", seed, ROUNDS, [header, *metrics], clients)

    return run


def test_the_search_has_all_rates_of_three_methods_and_no_other_settings():
    (variant, sweep), *_ = rates.sweeps("femnist")
    assert variant == rates.USUAL
    assert len(sweep.names) == 3 * len(rates.RATES)


def test_each_variant_changes_fedrep_at_the_papers_rate_and_leaves_validation_samples(plan, place):
    trials = [(rates.of_variant(place("femnist"), variant), sweep) for variant, sweep in rates.sweeps("femnist")[1:]]
    settings = [found for trial in trials for found in plan(*trial).values()]
    assert {setting["data"]["init_args"]["val_fraction"] for setting in settings} == {0.2}
    assert {setting["trainer"]["max_steps"] for setting in settings} == {ROUNDS}
    options = [setting["model"]["init_args"] for setting in settings]
    assert {each["lr"] for each in options} == {rates.PAPERS}
    assert len({str(each) for each in options}) == len(rates.VARIANTS) - 1


def test_a_result_is_the_validation_accuracy_and_the_first_round_that_is_worse_than_guessing(write, femnist):
    write(0.1, 1, [1.0] * 3 + [2.4] + [1.0] * (ROUNDS - 4), 80)
    write(0.1, 2, [1.0] * ROUNDS, 70)
    found = rates.result(femnist, "fedrep", "finetuned", 0.1)
    assert found.accuracy.tolist() == [80, 70]
    assert found.diverged.tolist() == [4, inf]
    assert found.cells == ("75.00 ± 7.07", "4")


def test_a_run_that_was_stopped_has_no_accuracy_and_diverged_in_the_round_after_its_last(write, femnist):
    write(0.1, 1, [1.0, 1.1], 80)
    found = rates.result(femnist, "fedrep", "finetuned", 0.1)
    assert all(map(isnan, found.accuracy))  # of the second seed there is nothing at all
    assert found.diverged.tolist() == [3, 1]
    assert found.cells == ("-", "1")


@pytest.mark.parametrize(
    ("accuracies", "rate"),
    [((80, 85, 84.5), 0.1), ((80, 85, 83), 0.03), ((86, 85.5, np.nan), 0.03), ((90, 80, 70), 0.01)],
)
def test_the_largest_rate_is_chosen_that_is_not_worse_than_the_best(accuracies, rate):
    results = [rates.Result(np.array([value]), np.array([inf])) for value in accuracies]
    assert rates.chosen(results) == rate


def test_where_a_run_stopped_at_every_rate_there_is_no_choice():
    results = [rates.Result(np.array([np.nan]), np.array([1.0]))] * 3
    assert "| fedrep | finetuned | -" in (table := rates.rates_table("femnist", {("fedrep", "finetuned"): results}))
    assert table.rstrip().splitlines()[-1].split("|")[-2].strip() == "-"


def test_the_table_shows_each_rate_and_the_choice():
    results = [rates.Result(np.array([value]), np.array([inf])) for value in (80.0, 85.0, 84.5)]
    assert "| fedrep | finetuned | 80.00 | 85.00 | 84.50 | 0.1 " in rates.rates_table(
        "femnist", {("fedrep", "finetuned"): results}
    )
    assert "| momentum 0 | 85.00 " in rates.variants_table("femnist", {"momentum 0": results[1]})
