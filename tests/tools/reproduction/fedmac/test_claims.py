from types import SimpleNamespace

import numpy as np
import pytest
from fakes.panels import passed
from reproduction.fedmac import accuracy, dense, shares, sparse
from reproduction.fedmac.accuracy import Accuracy
from reproduction.fedmac.runs import METHODS
from reproduction.fedmac.sparse import Sparse

# best accuracy of each row of the tables, for which all claims hold
GOOD = dict(zip(accuracy.ROWS, (80.0, 80.0, 90.0, 91.0, 79.0, 92.0, 79.6, 95.0), strict=True))


def constant(value):
    return Accuracy(np.full((2, 3), value), np.full((2, 3), value))


def accuracies(**changed):
    """The good ones, some of them changed: ``fedmac_personal=90``."""
    return {row: np.full(2, changed.get("_".join(row), value)) for row, value in GOOD.items()}


def run(*corrects, **logged):
    """A run of two clients with 30 and 10 samples, of which so many are correct at each evaluation."""
    samples = np.array([30, 10])
    clients = {
        ("test", "global", at): SimpleNamespace(correct=np.array(each), samples=samples)
        for at, each in enumerate(corrects)
    }
    means = {"global": (np.array(corrects) / samples).mean(1)}
    return SimpleNamespace(rounds=range(len(corrects)), means=means, clients=clients, logged=logged)


def test_accuracies_are_over_all_samples_and_over_clients():
    found = accuracy.accuracy([run((0, 0), (30, 5), (15, 5)), run((0, 10), (30, 10), (3, 1))], "global")
    np.testing.assert_allclose(found.micro, [[0, 87.5, 50], [25, 100, 10]])
    np.testing.assert_allclose(found.macro, [[0, 75, 50], [50, 100, 10]])
    np.testing.assert_allclose(found.best, [87.5, 100])


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [True] * 5),
        ({"per-fedavg_adapted": 95.1}, [False, True, True, True, True]),
        ({"pfedme_personal": 78.0}, [True, False, True, True, True]),
        ({"fedmac_personal": 79.0}, [False, True, False, True, True]),
        ({"pfedme_global": 79.7}, [True, True, True, False, True]),
        ({"fedavg_global": 80.2}, [True, True, True, True, False]),
    ],
    ids=str,
)
def test_each_ordering_of_a_table_can_fail(changed, expected):
    assert passed(accuracy.orderings(accuracies(**changed))) == expected


@pytest.mark.parametrize(
    ("shared", "own", "expected"),
    [(78.7, 83.5, [True, True]), (78.9, 83.5, [False, True]), (78.7, 83.3, [True, False])],
)
def test_the_simulation_is_met_within_a_point(shared, own, expected):
    assert passed(accuracy.simulated(accuracies(fedavg_global=shared, fedmac_personal=own))) == expected


def test_a_table_has_the_papers_numbers_and_ours():
    found = {row: constant(value) for row, value in GOOD.items()}
    lines = accuracy.shown("mnist_mlr", found).splitlines()
    assert any("fedmac" in line and "96.64" in line and "95.00 ± 0.00" in line for line in lines)


def test_claims_about_a_table_stand_beside_the_same_numbers_of_the_paper(monkeypatch, place):
    monkeypatch.setattr(accuracy, "trained", lambda place, sweeps: {method: method for method in METHODS})
    monkeypatch.setattr(accuracy, "accuracy", lambda method, model: constant(GOOD[method, model]))
    claims = accuracy.table_claims(place("mnist_dnn"))
    assert passed(claims) == [True] * 5
    assert claims[0].printed == "98.95, 98.44, 98.15, 98.92"  # FedMac, HeurFedAMP, Per-FedAvg, pFedMe
    assert [claim.printed for claim in claims[1:3]] == ["98.92, 96.87", "98.95, 96.90"]


def result(density=40.0, shared=90.0, own=95.0, bits=0.5):
    return Sparse(*(np.full(2, value) for value in (density, shared, own, bits)))


OTHERS = {"fedprox": result(70, 89)._replace(own=None), "per-fedavg": result(80, 92, 94), "pfedme": result(60, 88, 94)}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (result(), [True] * 4),  # Per-FedAvg's shared model does not count
        (result(density=60.0), [False, True, True, True]),
        (result(shared=89.0), [True, False, True, True]),
        (result(own=94.0), [True, True, False, True]),
        (result(bits=0.56), [True, True, True, False]),
    ],
)
def test_each_claim_of_table_4_can_fail(own, expected):
    claims = [*sparse.best_of_all({**OTHERS, "fedmac": own}), sparse.halves_the_bits(own)]
    assert passed(claims) == expected


def test_more_weight_has_to_cost_density_and_accuracy():
    for last, expected in (
        (result(50, 93), [True, True]),
        (result(60, 93), [False, True]),
        (result(50, 94), [True, False]),
    ):
        assert passed(sparse.monotone([result(80, 95), result(60, 94), last])) == expected


@pytest.mark.parametrize("logged", [range(1, 11), range(2, 11, 2), [10]], ids=str)
def test_bits_are_those_of_the_second_half_of_the_rounds_however_often_they_are_logged(logged):
    dense_bits = 2 * 64 * 79510  # up and down in each round, until half as much from round 5 on
    counts = {at: dense_bits * (at if at <= 5 else 5 + (at - 5) / 2) for at in logged}
    found = sparse.sparse([run((1, 1), **{"bits/paper": counts, sparse.DENSITY: {5: 0.9, 10: 0.4}})], "global")
    # of the rounds 5 to 10, or 4 to 10, or all
    assert found.bits == pytest.approx([{10: 0.5, 5: 3.5 / 6, 1: 0.75}[len(logged)]])
    assert found.density == pytest.approx([40.0])
    assert found.own is None


@pytest.fixture
def made_up(monkeypatch):
    """Gives the figures without sparsity made-up accuracies, by method and model, or by a function of both."""

    def replace(score):
        monkeypatch.setattr(
            dense, "trained", lambda place, sweeps: {name: name for sweep in sweeps for name in sweep.names}
        )
        monkeypatch.setattr(dense, "accuracy", lambda name, model: constant(score(name, model)))
        monkeypatch.setattr(dense, "compare", lambda *args: None)

    return replace


def test_each_gap_of_figure_4_can_close(made_up, place):
    place = place("mnist_dnn")
    made_up(lambda name, model: GOOD[name, model])
    assert passed(dense.fig4_claims(place)) == [True] * 7
    made_up(lambda name, model: 95.0 if (name, model) == ("fedavg", "global") else GOOD[name, model])
    assert passed(dense.fig4_claims(place)) == [True] * 6 + [False]


def swept(name, key):
    """The value of a setting in the name of a folder, or None."""
    values = dict(word.split("=") for word in name.split(",")[1:])
    return float(values[key]) if key in values else None


def fig2_score(sign, dip=None):
    def score(name, model):
        rate, correlation = swept(name, "lr"), swept(name, "correlation")
        if rate is None:
            return 80 if correlation == dip else 90 + sign * 100 * (correlation or 0.0)
        return 80 + sign * rate if model == "global" else 95 - sign * rate

    return score


@pytest.mark.parametrize(("sign", "expected"), [(1, True), (-1, False)])
def test_the_trends_of_figure_2_can_be_reversed(sign, expected, made_up, place):
    made_up(fig2_score(sign))
    assert passed(dense.fig2_claims(place("mnist_dnn"))) == [expected] * 3


def test_more_correlation_has_to_help_at_every_step(made_up, place):
    made_up(fig2_score(1, dip=0.005))
    assert passed(dense.fig2_claims(place("mnist_dnn"))) == [True, True, False]


@pytest.mark.parametrize("lost", [100, 0])
def test_large_correlations_have_to_ruin_the_global_model(lost, made_up, place):
    made_up(lambda name, model: 90 - lost * swept(name, "correlation"))
    assert passed(dense.stability_claims(place("mnist_dnn"))) == [lost > 0]


@pytest.mark.parametrize(("sizes", "expected"), [((60, 40), True), ((90, 30), True), ((91, 29), False)], ids=str)
def test_every_client_needs_half_of_an_equal_share(sizes, expected, monkeypatch, place):
    counts = {"train": np.array([[size, 0] for size in sizes]), "test": np.ones((2, 2))}
    monkeypatch.setattr(shares, "split_data", lambda options: SimpleNamespace(class_counts=lambda: counts))
    monkeypatch.setattr(shares, "save_figure", lambda figure, path: None)
    assert passed(shares.fig5_claims(place("cinic10_wrn"))) == [expected]


def test_the_tables_have_a_row_for_every_method():
    assert {method for method, _ in accuracy.ROWS} == set(METHODS)
