import numpy as np
import pytest

from pfl_lightning.report import can_choose, choice_of, curves_of, read_run
from pfl_lightning.report.choice import choice_tables

CLIENTS = 20


@pytest.fixture
def offer(write_run, evaluate):
    """Makes a run with test errors and losses on samples for choosing, one per client."""

    def make(name, errors, losses, seed=1, **settings):
        folder = write_run(name, {"global": [[1 - error for error in errors]]}, seed=seed, **settings)
        return read_run(evaluate(folder, "choice", [losses]))

    return make


@pytest.fixture
def two(offer):
    """The clients with the odd ids choose Delta-FL; under FedAvg the errors grow with the ids."""
    odd = np.arange(CLIENTS) % 2
    return curves_of(
        [
            offer("mean", np.arange(CLIENTS) / 100, 1 + odd, method="FedAvg"),
            offer("tail", np.full(CLIENTS, 0.1), 2 - odd, method="DeltaFL"),
        ]
    )


def picks(choice):
    """Index of the curve that each client picks, of all clients of the first seed, and then of the others."""
    return choice.picked.to_numpy().argmax(axis=1).tolist()


def test_nobody_picks_a_model_without_a_loss(offer):
    runs = [
        offer("mean", [0.9, 0.1], [np.nan, np.nan], method="FedAvg"),
        offer("tail", [0.1, 0.2], [5.0, np.nan], method="DeltaFL"),
    ]
    assert picks(choice_of(curves_of(runs))) == [1, 0]


def test_each_client_gets_the_error_of_the_model_with_its_smallest_loss(two):
    choice = choice_of(two)
    assert picks(choice) == [0, 1] * 10
    expected = [client / 100 if client % 2 == 0 else 0.1 for client in range(CLIENTS)]
    mean, tail, own, oracle = choice_tables(choice)[0].rows
    assert [mean["mean"], tail["mean"]] == pytest.approx([0.095, 0.1])
    assert own["mean"] == pytest.approx(np.mean(expected))
    assert own["p90"] == pytest.approx(np.percentile(expected, 90))
    # in hindsight the first ten take FedAvg, and the others the constant .1
    assert oracle["mean"] == pytest.approx((0.45 + 10 * 0.1) / CLIENTS)
    assert oracle["method"] == "best in hindsight (oracle: chosen on test)"


def test_clients_are_grouped_by_their_percentile_under_the_reference(two):
    choice = choice_of(two)
    members = {name: np.flatnonzero(choice.percentiles == name).tolist() for name in choice.groups}
    assert members == {
        "0-25": [0, 1, 2, 3, 4],
        "25-50": [5, 6, 7, 8, 9],
        "50-75": [10, 11, 12, 13, 14],
        "75-90": [15, 16, 17],
        "90-100": [18, 19],
    }
    fedavg, delta_fl = choice_tables(choice)[1].rows
    assert [fedavg[name] for name in members] == pytest.approx([3 / 5, 2 / 5, 3 / 5, 1 / 3, 1 / 2])
    assert [delta_fl[name] for name in members] == pytest.approx([1 - fedavg[name] for name in members])
    assert "| FedAvg   | 60   | 40    | 60    | 33    | 50     |" in choice_tables(choice)[1].text


def test_groups_without_clients_are_left_out(offer):
    runs = [offer(method, [0.1, 0.2, 0.3], [1, 1, 1], method=method) for method in ("FedAvg", "DeltaFL")]
    choice = choice_of(curves_of(runs))
    # their percentiles are 17, 50 and 83
    assert choice.groups == ["0-25", "50-75", "75-90"]
    assert picks(choice) == [0, 0, 0], "of equal losses the first curve is taken"


def test_runs_are_paired_by_seed(offer):
    good = {1: 0.1, 2: 0.3, 4: 0.9}
    runs = [offer(f"a{seed}", [error], [1], seed, method="FedAvg") for seed, error in good.items()]
    runs += [offer(f"b{seed}", [0.5], [seed / 2 + 0.25], seed, method="DeltaFL") for seed in (2, 1, 3)]
    choice = choice_of(curves_of(runs))
    assert choice.seeds == [1, 2]
    # the loss of Delta-FL is .75 with seed 1 and 1.25 with seed 2, that of FedAvg 1
    assert picks(choice) == [1, 0]
    own = choice_tables(choice)[0].rows[2]
    assert (own["mean"], own["mean_seed_std"]) == pytest.approx((0.4, np.sqrt(0.02)))
    assert choice_tables(choice)[1].text.endswith("Seeds that not all curves have are left out: 3, 4\n")


def test_clients_without_samples_for_choosing_are_left_out(write_run, evaluate):
    runs = []
    for name, errors in (("FedAvg", [0.9, 0.1, 0.2]), ("DeltaFL", [0.9, 0.3, 0.1])):
        folder = write_run(name, {"global": [[1 - error for error in errors]]}, name)
        runs.append(read_run(evaluate(folder, "choice", [[1.0, 1.0]], first=1)))
    errors = choice_of(curves_of(runs)).outcomes[["FedAvg", "Delta-FL"]].to_numpy()
    assert errors == pytest.approx(np.array([[0.1, 0.3], [0.2, 0.1]]))


def test_to_choose_takes_two_curves_with_samples_for_it(write_run, two):
    assert can_choose(two)
    assert not can_choose(two[:1])
    assert not can_choose([*two, *curves_of([read_run(write_run("other", {"stored": [[0.5]]}))])])
