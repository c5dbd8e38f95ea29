from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fakes.panels import FAST, NEVER, SECONDS, SLOW, curve, panel, passed
from reproduction import kinds
from reproduction.claims import FAILS, HOLDS, INCONCLUSIVE

from pfl_lightning.errors import PflError
from pfl_lightning.report import Curve
from pfl_lightning.system import TwoPopulation

TEXTS = {"claim": "c", "expected": "e"}
EVEN = [0.2] * 11  # mean and 90th percentile 20 %
UNEVEN = [0.0] * 5 + [0.1] + [0.4] * 5  # mean 21/110 = 19.1 %, 90th percentile 40 %


def devices(*seeds):
    """A curve with the final errors of some devices of each seed."""

    def run(errors):
        return SimpleNamespace(
            rounds=np.array([0, 20]),
            clients={("test", "global", 20): pd.DataFrame({"error": errors})},
        )

    return Curve([run(errors) for errors in (seeds * 2 if len(seeds) == 1 else seeds)], "global")


@pytest.mark.parametrize(
    ("others", "expected"),
    [({"a": EVEN}, True), ({"a": [0.25] * 11}, False), ({"a": [0.25] * 11, "b": EVEN}, True)],
    ids=["0.9 points", "5.9 points", "the best tail counts"],
)
def test_the_mean_of_the_best_tail_is_on_par_with_the_reference(others, expected, results):
    values = {
        name: lambda measure, statistic, row=row: (
            100 * (np.mean(row) if statistic == "mean" else np.percentile(row, 90))
        )
        for name, row in {"fedavg": UNEVEN, **others}.items()
    }
    row = {"kind": "on_par", "reference": "fedavg", "others": [*others], "labels": ["fedavg", *others], "margin": 1.0}
    (claim,) = kinds.row_of(TEXTS | row | {"claim": "BEST"}).claims(results(values))
    assert (claim.claim, claim.word == HOLDS) == ([*others][-1], expected)


def test_a_tail_that_few_clients_make_is_not_told_for_others():
    errors = np.linspace(0, 1, 101)
    one = np.where(np.arange(101) == 90, 0.8, errors)  # one client alone has the 90th percentile
    curves = {"fedavg": devices(errors), 0.5: devices(errors - 0.1), 0.8: devices(errors + 0.1), 0.1: devices(one)}
    row = {"kind": "below_by_draws", "right": "fedavg", "percentile": 90, "claim": "CLIENTS clients"}
    found = [
        kinds.row_of(row | {"left": name}).claims(SimpleNamespace(curve=curves.get))[0] for name in (0.5, 0.8, 0.1)
    ]
    assert [claim.verdict for claim in found] == [HOLDS, FAILS, INCONCLUSIVE]
    measured = ["-10.0, from -10.0 to -10.0", "10.0, from 10.0 to 10.0", "-1.0, from -4.0 to 0.0"]
    assert [claim.measured for claim in found] == measured
    assert found[0].claim == "101 clients"


@pytest.mark.parametrize(
    ("best", "printed", "expected"),
    [
        (89.1, 90.0, [True]),
        (88.9, 90.0, [False]),
        (91.1, 90.0, [False]),
        (88.9, "90.00 ± 1.50", [True]),
        (33.8, "33.80 ± 41.22", []),  # any number would agree
        (90.0, None, []),
    ],
)
def test_a_row_agrees_within_a_point_or_the_published_deviation(best, printed, expected, results):
    row = kinds.row_of(TEXTS | {"kind": "agrees", "left": "a", "band": 1.0, "measure": "best"})
    found = results({"a": best}, printed={"a": printed} if printed else {"b": 1.0})
    assert passed(row.claims(found)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[2.0, 4.0, 2.0]] * 2), True),
        (np.array([[5.0, 4.0, 2.0]] * 2), False),
        (np.array([[1.0, 2.0, 3.0]] * 2), False),
        # the largest value is in the second round of six, and the middle one is smaller than the first
        (np.array([[2.0, 4.0, 1.0, 1.0, 1.0, 1.0]] * 2), True),
        # rises for one seed, falls for the other
        (np.array([[1.0, 4.0, 1.0], [3.0, 2.0, 1.0]]), False),
    ],
)
def test_what_is_logged_rises_and_falls(values, expected):
    runs = [SimpleNamespace(logged=pd.DataFrame({"tag": row})) for row in values]
    row = kinds.row_of(TEXTS | {"kind": "rises_then_falls", "of": "a", "tag": "tag"})
    assert passed(row.claims(SimpleNamespace(runs_of=lambda name: (runs, "m")))) == [expected]


@pytest.mark.parametrize(("start", "expected"), [(None, False), (0.0, True)])
def test_what_falls_from_the_first_round_on_has_risen_in_it(start, expected):
    runs = [SimpleNamespace(logged=pd.DataFrame({"tag": [5.0, 4.0, 2.0 + seed]})) for seed in (0.0, 0.1)]
    row = kinds.row_of(TEXTS | {"kind": "rises_then_falls", "of": "a", "tag": "tag", "start": start})
    (claim,) = row.claims(SimpleNamespace(runs_of=lambda name: (runs, "m")))
    assert (claim.word == "holds") == expected
    assert f"after rounds {0 if expected else 1}, 1 (the largest) and 3" in claim.claim


def test_the_best_curve_is_best_in_the_time_that_all_have_and_the_common_models_are_the_worst():
    better, low, lower = curve([0.5, 0.9, 0.9, 0.9, 0.9]), curve([0.1] * 5), curve([0.05] * 5)
    rows = [{"kind": "best_over_time", "of": "FedRep-SRPFL"}, {"kind": "worst", "of": ["FLANP", "FedAvg"]}]
    for flanp, fedavg, expected in (
        (low, lower, [True, True]),
        (better, lower, [False, False]),
        (low, SLOW, [True, False]),
    ):
        found = SimpleNamespace(labelled=panel(FLANP=flanp, FedAvg=fedavg))
        assert passed([claim for row in rows for claim in kinds.row_of(TEXTS | row).claims(found)]) == expected


@pytest.mark.parametrize(("communication", "expected"), [(0, [True]), (10, [False])])
def test_rounds_that_cost_communication_count_for_the_best_curve(communication, expected):
    # FedRep is better after each round, but takes ten times as long without communication
    found = SimpleNamespace(labelled=panel(slow=curve([0.1, *[0.6] * 4], seconds=10 * SECONDS)))
    row = {"kind": "best_over_time", "of": "FedRep-SRPFL", "communication": communication}
    assert passed(kinds.row_of(TEXTS | row).claims(found)) == expected


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"kind": "abov", "left": "a"}, "claims: kind: abov is not possible; allowed: .*; did you mean above"),
        ({"kind": "above", "left": "a", "rigth": "b"}, "claims: rigth: no such key; did you mean right"),
        ({"kind": "above", "left": "a"}, "claims: missing a required .*'right'"),
        ({"kind": "rises", "of": ["a"], "left": "a"}, "claims: left: no such key"),
    ],
)
def test_a_row_has_the_keys_of_its_kind(row, line):
    with pytest.raises(PflError, match=line):
        kinds.row_of(row)


def test_the_time_is_the_mean_over_draws_of_the_speeds(monkeypatch):
    monkeypatch.setattr(kinds, "SPEED_DRAWS", 2)
    draws = [TwoPopulation(0.25, seed=seed).times(0, 4) for seed in range(2)]
    # 0.57 is reached after 40 rounds of all 4 clients, and after 30 rounds of the fastest
    goal = np.full(2, 0.57)
    assert kinds.mean_seconds(SLOW, goal, 0.25) == pytest.approx(40 * np.mean([draw.max() for draw in draws]))
    first = curve(FAST.means[0], cohort=1)
    assert kinds.mean_seconds(first, goal, 0.25) == pytest.approx(30 * np.mean([draw.min() for draw in draws]))
    assert np.isnan(kinds.mean_seconds(NEVER, goal, 0.25)).all()


@pytest.mark.parametrize(
    ("panels", "expected"),
    [
        (
            {0.1: panel(fast=curve(FAST.means[0], cohort=1)), 0.5: panel(fast=curve(FAST.means[0], cohort=1))},
            [True] * 3,
        ),
        # as many stragglers in both: no claim holds
        ({0.49999: panel(), 0.5: panel()}, [False] * 3),
        # with all clients from the first round on, doubling saves nothing, and takes longer
        ({0.1: panel(fast=SLOW, slow=FAST), 0.5: panel(fast=SLOW, slow=FAST)}, [True, True, False]),
        ({0.1: panel(fast=NEVER), 0.5: panel(fast=NEVER)}, [True, False, False]),
        # only with few stragglers it gets there, so that it takes longer with many; how much is not known
        ({0.1: panel(fast=SLOW), 0.5: panel(fast=NEVER)}, [True, True, False]),
    ],
)
def test_stragglers_cost_time_and_doubling_softens_that(panels, expected):
    found = {share: SimpleNamespace(labelled=curves) for share, curves in panels.items()}
    assert passed(kinds.slower_with_stragglers(found, "FedRep-SRPFL", "FedRep")) == expected
