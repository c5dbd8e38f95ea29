from types import SimpleNamespace

import numpy as np
import pytest
from fakes.panels import passed
from reproduction.baselines import table
from reproduction.baselines.table import Published, Row, Scores

SAMPLES = np.array([30, 10])
ROWS = (
    Row("Local", "local", "stored"),
    Row("FedAvg", "fedavg", "global"),
    Row("FedAvg-FT", "fedavg", "finetuned"),
)


def run(rounds=3, **models):
    """A run of two clients with 30 and 10 samples: of each model, how many are correct at each evaluation."""
    correct = {(model, at): np.array(each) for model, found in models.items() for at, each in enumerate(found)}
    return SimpleNamespace(
        rounds=range(rounds),
        settings={"trainer.max_steps": 2},
        clients={("test", *key): SimpleNamespace(correct=each, samples=SAMPLES) for key, each in correct.items()},
        client_scores=lambda model, at: correct[model, at] / SAMPLES,
    )


def test_scores_are_those_of_the_best_and_the_last_round_of_the_mean_and_of_the_worst_client():
    found = table.scores([run(m=[(0, 0), (30, 5), (15, 6)]), run(m=[(0, 10), (9, 9), (30, 10)])], "m")
    np.testing.assert_allclose(found, [[87.5, 100], [52.5, 100], [55, 100], [50, 100]])


def test_a_run_that_ended_early_has_no_scores():
    found = table.scores([run(rounds=2, m=[(0, 0), (30, 5)]), run(m=[(0, 10), (9, 9), (30, 10)])], "m")
    np.testing.assert_allclose(found, [[np.nan, 100]] * 4)


def test_differences_from_local_are_paired_by_seed_and_have_the_interval_of_their_own_mean():
    last, early = np.array([80.0, 84.0, 91.0]), np.array([np.nan, 85.0, 89.0])
    found = {"Local": last, "FedPer": last + np.arange(1, 4), "SCAFFOLD": early, "APFL": early * np.nan}
    text = table.above_local({name: Scores(each, each, each[:1], each) for name, each in found.items()})
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in text.splitlines()[-3:]]
    assert rows == [
        ["FedPer", "2.00 ± 2.48", "1.00"],  # t with two degrees of freedom is 4.303, by the root of three
        ["SCAFFOLD", "-0.50 ± 19.06 (2 of 3 seeds)", "ended early"],
        ["APFL", "ended early", "ended early"],
    ]


@pytest.mark.parametrize(
    ("best", "published", "expected"),
    [
        ((89.1, 89.1, 89.1), Published(90.0), True),
        ((88.9, 88.9, 88.9), Published(90.0), False),
        ((91.1, 91.1, 91.1), Published(90.0), False),
        ((88.9, 88.9, 88.9), Published(90.0, 1.5), True),
        ((89.6, 90.0, 90.4), Published(90.0), True),
    ],
    ids=str,
)
def test_a_row_agrees_within_a_point_or_the_published_deviation(best, published, expected):
    found = {"FedAvg": Scores(*[np.array(best)] * 4)}
    assert passed(table.claims(found, {"FedAvg": published})) == [expected]


@pytest.fixture
def trained(monkeypatch):
    """Replaces training by two methods' runs, the same for each seed; notes the sweeps that are asked for."""
    asked = []
    made = {
        "local": run(stored=[(0, 0), (30, 5), (30, 5)]),
        "fedavg": run(**{"global": [(0, 0), (15, 5), (12, 4)], "finetuned": [(0, 0), (27, 9), (24, 9)]}),
    }

    monkeypatch.setattr(table, "start", lambda place, sweep: asked.append(sweep))
    monkeypatch.setattr(table, "found_runs", lambda place, name: [made[name]] * len(place.seeds))
    return asked


def test_rows_of_the_same_runs_train_once_and_stand_beside_what_was_published(trained, place):
    found = table.table_claims(
        place("toy", scale="full", seeds=(1, 2, 3)), ROWS, {"toy": {"FedAvg": Published(50.9, 0.2)}}
    )
    assert [sweep.methods for sweep in trained] == [("local",), ("fedavg",)]
    assert (len(found), passed(found)) == (1, [True])
    text = " ".join((place("toy").folder / "table.md").read_text().split())
    assert "toy, full scale, 3 seeds:" in text
    assert "| Local | - | 87.50 ± 0.00 | 87.50 ± 0.00 | 75.00 ± 0.00 | 50.00 ± 0.00 |" in text
    assert "| FedAvg | 50.90 ± 0.20 | 50.00 ± 0.00 | 40.00 ± 0.00 |" in text
    assert "| FedAvg-FT | - | 90.00 ± 0.00 | 82.50 ± 0.00 | 85.00 ± 0.00 | 80.00 ± 0.00 |" in text
    assert "| FedAvg-FT | -5.00 ± 0.00 | 10.00 ± 0.00 |" in text
    again = table.read(place("toy").folder / "table.csv")
    assert list(again) == ["Local", "FedAvg", "FedAvg-FT"]
    np.testing.assert_allclose(again["FedAvg"], np.repeat([[50], [40], [40], [40]], 3, axis=1))


def test_nothing_is_claimed_at_the_small_scale_whose_numbers_are_expected_below_the_published_ones(trained, place):
    assert table.table_claims(place("toy", seeds=(1, 2, 3)), ROWS, {"toy": {"FedAvg": Published(50.9)}}) == []


def test_a_method_that_diverges_is_a_row_and_one_that_cannot_begin_ends_the_table(monkeypatch, place):
    runs = [run(stored=[(0, 0), (30, 5), (30, 5)]), run(rounds=2, stored=[(0, 0), (30, 5)])]
    monkeypatch.setattr(table, "start", lambda place, sweep: 1)
    monkeypatch.setattr(table, "found_runs", lambda place, name: runs)
    table.table_claims(place("toy", seeds=(1, 2)), ROWS[:1], {"toy": {}})
    text = " ".join((place("toy").folder / "table.md").read_text().split())
    assert "| Local | - | 87.50 (ended early for 1 of 2 seeds) |" in text
    runs[1] = None
    with pytest.raises(SystemExit):
        table.table_claims(place("toy", seeds=(1, 2)), ROWS[:1], {"toy": {}})


def test_a_published_number_of_trials_that_differ_by_any_amount_is_no_claim(trained, place):
    published = {"toy": {"FedAvg": Published(50.9, 0.2), "Local": Published(33.8, 41.2)}}
    found = table.table_claims(place("toy", scale="full", seeds=(1, 2, 3)), ROWS, published)
    assert [claim.claim for claim in found] == ["FedAvg: best round (%)"]
