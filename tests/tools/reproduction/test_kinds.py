from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from fakes.panels import FAST, NEVER, SLOW, curve, panel, passed
from reproduction import kinds
from reproduction.claims import FAILS, HOLDS, INCONCLUSIVE

from pfl_lightning.report import Curve
from pfl_lightning.system import TwoPopulation

TEXTS = {"claim": "c", "expected": "e"}
EVEN = [0.2] * 11  # mean and 90th percentile 20 %
UNEVEN = [0.0] * 5 + [0.1] + [0.4] * 5  # mean 21/110 = 19.1 %, 90th percentile 40 %
HUMP = np.array([[2.0, 4.0, 2.0]] * 2)  # [seeds, rounds]
DATA = torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])


def devices(*seeds, cohorts=()):
    """A curve with the final errors of some devices of each seed, and the devices kept in each round."""

    def run(errors):
        return SimpleNamespace(
            settings={"data.participation.pool_size": 10},
            rounds=np.array([0, 20]),
            clients={("test", "global", 20): pd.DataFrame({"error": errors})},
            logged=pd.DataFrame({"system/cohort": cohorts}),
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
    row = TEXTS | {"reference": "fedavg", "others": [*others], "labels": ["fedavg", *others], "margin": 1.0}
    assert passed(kinds.on_par(row | {"claim": "BEST"}, results(values))) == [expected]


def test_a_tail_that_few_devices_make_is_not_told_for_others():
    errors = np.linspace(0, 1, 101)
    one = np.where(np.arange(101) == 90, 0.8, errors)  # one device alone has the 90th percentile
    curves = {"fedavg": devices(errors), 0.5: devices(errors - 0.1), 0.8: devices(errors + 0.1), 0.1: devices(one)}
    found = [
        kinds.elsewhere(TEXTS | {"left": name, "right": "fedavg"}, SimpleNamespace(curve=curves.get))[0]
        for name in (0.5, 0.8, 0.1)
    ]
    assert [claim.verdict for claim in found] == [HOLDS, FAILS, INCONCLUSIVE]
    measured = ["-10.0, from -10.0 to -10.0", "10.0, from 10.0 to 10.0", "-1.0, from -4.0 to 0.0"]
    assert [claim.measured for claim in found] == measured


@pytest.mark.parametrize(
    ("conformity", "cohorts", "expected"),
    [
        (0.5, (5, 6, 5, 6), [True, True]),
        (0.5, (8, 8, 8, 8), [False, True]),
        (0.5, (4, 4, 6, 6), [True, False]),
        (0.1, (1, 1, 1, 1), [True, True]),
        (0.1, (2, 2, 1, 1, 1, 1), [True, False]),  # in the second half 0.07 of the pool less
    ],
)
def test_as_many_devices_are_kept_as_the_conformity_says(conformity, cohorts, expected):
    row = {"of": "a", "conformity": conformity, "band": min(0.15, conformity / 2), "change": min(0.1, conformity / 2)}
    found = SimpleNamespace(curve={"a": devices(EVEN, cohorts=cohorts)}.get)
    assert passed(kinds.share_kept(row, found)) == expected


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([101, 179, 447], 6, [True, True]),
        ([101, 170, 400], 6, [True, True]),  # another half of the users
        ([101, 150, 447], 6, [True, False]),
        ([100, 179, 447], 6, [True, False]),
        ([101, 179, 447], 7, [False, True]),
    ],
)
def test_devices_are_counted_beside_the_paper(counts, total, expected, results, monkeypatch):
    data = SimpleNamespace(training_counts=np.array(counts), num_clients=total)
    monkeypatch.setattr(kinds, "split_data", lambda options: data)
    row = {"train": 3, "test": 3, "median": 179, "smallest": 101, "largest": 447, "margin": 0.1}
    assert passed(kinds.devices(row, results({}))) == expected


@pytest.mark.parametrize(("sizes", "expected"), [((60, 40), True), ((90, 30), True), ((91, 29), False)], ids=str)
def test_every_client_needs_half_of_an_equal_share(sizes, expected, results, monkeypatch):
    counts = {"train": np.array([[size, 0] for size in sizes])}
    monkeypatch.setattr(kinds, "split_data", lambda options: SimpleNamespace(class_counts=lambda: counts))
    assert passed(kinds.smallest_share(TEXTS | {"least": 0.5}, results({}))) == [expected]


@pytest.mark.parametrize(("lost", "expected"), [(100, True), (0, False)])
def test_large_correlations_have_to_ruin_the_model(lost, expected, results):
    values = {str(each): 90.0 - lost * each for each in (0.01, 0.03, 0.1, 0.3)}
    row = TEXTS | {"of": [*values], "measure": "last"}
    assert passed(kinds.ruined(row, results(values))) == [expected]


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
    row = TEXTS | {"left": "a", "band": 1.0, "measure": "best"}
    found = results({"a": best}, printed={"a": printed} if printed else {"b": 1.0})
    assert passed(kinds.agrees(row, found)) == expected


@pytest.mark.parametrize(
    ("kind", "after", "expected"),
    [
        (kinds.mixed_at_once, 1e-9 * HUMP, True),
        (kinds.mixed_at_once, 1e-5 * HUMP, False),
        (kinds.rises_then_falls, HUMP, True),
        (kinds.rises_then_falls, np.array([[5.0, 4.0, 2.0]] * 2), False),
        (kinds.rises_then_falls, np.array([[1.0, 2.0, 3.0]] * 2), False),
        # the largest error is in the second round of six, and the middle one is smaller than the first
        (kinds.rises_then_falls, np.array([[2.0, 4.0, 1.0, 1.0, 1.0, 1.0]] * 2), True),
        # rises for one seed, falls for the other
        (kinds.rises_then_falls, np.array([[1.0, 4.0, 1.0], [3.0, 2.0, 1.0]]), False),
    ],
)
def test_consensus_is_reached_at_once_or_the_error_rises_and_falls(kind, after, expected):
    tags = {"before": np.resize(HUMP, after.shape), "after": after}
    runs = [
        SimpleNamespace(logged=pd.DataFrame({f"consensus/{when}": row[seed] for when, row in tags.items()}))
        for seed in (0, 1)
    ]
    assert passed(kind(TEXTS | {"of": "a"}, SimpleNamespace(runs_of=lambda name: (runs, "m")))) == [expected]


# the smallest cosine of two bodies is 1 - apart, and (c + 1) / 2 is 1 - apart / 2
@pytest.mark.parametrize(
    ("heads", "apart", "expected"),
    [(DATA, 0.019, [True, True]), (1 - DATA, 0.019, [False, True]), (DATA, 0.021, [True, False])],
)
def test_heads_have_to_follow_the_data_and_bodies_to_be_alike(heads, apart, expected, part, monkeypatch):
    bodies = torch.ones(3, 3) - apart * torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    counts = {"train": np.ones((3, 2))}
    monkeypatch.setattr(kinds, "split_data", lambda options: SimpleNamespace(class_counts=lambda: counts))
    monkeypatch.setattr(kinds, "cosines_of", lambda run, counts: {"data": DATA, "heads": heads, "bodies": bodies})
    found = SimpleNamespace(part=part(), runs_of=lambda name: (["a", "b"], "m"))
    assert passed(kinds.alike({"of": "a", "alpha": 0.1, "bound": 0.99}, found)) == expected
    assert (found.part.place.folder / "fig3_alpha=0.1.png").is_file()


def test_the_maps_of_a_run_are_of_its_class_counts_heads_and_bodies(monkeypatch, tmp_path):
    rows = {"head": torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "body": torch.tensor([[1.0, 1.0], [1.0, 0.0]])}
    method = SimpleNamespace(
        parts={"head": {"head"}, "body": {"body", "statistic"}},
        engine=SimpleNamespace(trainable={"head", "body"}),
        clients=SimpleNamespace(inner_products=lambda names: rows[names[0]] @ rows[names[0]].T),
    )
    monkeypatch.setattr(kinds, "load_method", lambda path: method)
    found = kinds.cosines_of(SimpleNamespace(folder=tmp_path), torch.tensor([[3, 0], [4, 3]]))
    for entries, cosine in zip(found.values(), (0.8, 0.0, 0.5**0.5), strict=True):
        torch.testing.assert_close(entries.double(), torch.tensor([[1, cosine], [cosine, 1]]).double())


def test_the_best_curve_is_best_in_the_time_that_all_have_and_the_common_models_are_the_worst():
    better, low, lower = curve([0.5, 0.9, 0.9, 0.9, 0.9]), curve([0.1] * 5), curve([0.05] * 5)
    for flanp, fedavg, expected in (
        (low, lower, [True, True]),
        (better, lower, [False, False]),
        (low, SLOW, [True, False]),
    ):
        found = SimpleNamespace(labelled=panel(FLANP=flanp, FedAvg=fedavg))
        claims = kinds.best_over_time(TEXTS | {"of": "FedRep-SRPFL"}, found)
        assert passed([*claims, *kinds.worst(TEXTS | {"of": ["FLANP", "FedAvg"]}, found)]) == expected


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
