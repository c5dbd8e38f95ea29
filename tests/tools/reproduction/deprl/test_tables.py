from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from reproduction.deprl import newcomers, orderings, tables
from reproduction.deprl.paper import TABLE1, TABLE2, TABLE7, TABLE8
from reproduction.deprl.runs import DATA
from reproduction.deprl.tables import GRAPH_CELLS, RING_CELLS, SERVER_CELLS
from reproduction.runs import Place

KINDS = (orderings.best_first, orderings.denser_is_better, orderings.by_concentration)
SEEDS = np.array([-1.0, 0.0, 1.0])  # all cells have the same good and bad seeds


@pytest.fixture
def place(tmp_path):
    return Place("fashion_mnist", "small", Path("files"), tmp_path, [1, 2, 3], 1)


def accuracies(place, **changed):
    """The paper's of Table 1 for each seed, some of them changed: ``**{"deprl Ring 0.1": 50}``."""
    known = tables.numbers(place, TABLE1, GRAPH_CELLS)
    return {cell: changed.get(" ".join(map(str, cell)), value) + SEEDS for cell, value in known.items()}


def failed(claims):
    return [claim.claim for claim in claims if not claim.passed]


@pytest.mark.parametrize("data", DATA)
def test_table_1_has_27_claims_that_the_papers_numbers_fulfil(data, place):
    found = accuracies(place._replace(pair=data))
    claims = list(chain.from_iterable(kind(found) for kind in KINDS))
    assert (len(claims), failed(claims)) == (27, [])


def test_each_ordering_of_table_1_can_fail(place):
    found = accuracies(place, **{"dispfl Complete 0.3": 95.1})  # better than DePRL's 95.03 and DisPFL's for 0.1
    best, denser, falling = (failed(kind(found)) for kind in KINDS)
    assert best == ["alpha 0.3, Complete: DePRL, DisPFL, D-PSGD (%)"]
    assert (denser, falling) == ([], [])
    found = accuracies(place, **{"d-psgd Complete 0.3": 80.0})  # worse than on the ring, and than for 0.1
    best, denser, falling = (failed(kind(found)) for kind in KINDS)
    assert best == []
    assert denser == ["D-PSGD, alpha 0.3: Ring, ErdosRenyi, Complete (%)"]
    assert falling == ["D-PSGD, Complete: alpha 0.1, 0.3, 0.5 (%)"]


# differences of the same seeds: their mean is -1, and their standard deviation 0, 1 or 2
@pytest.mark.parametrize(
    ("first", "expected"), [([9, 9, 9], False), ([8, 9, 10], True), ([9, 7, 11], True), ([8.5, 9, 9.5], False)]
)
def test_not_below_allows_a_standard_deviation_of_the_difference(first, expected):
    second = np.array([10.0, 10.0, 10.0])
    assert orderings.not_below(np.array(first), second) == expected
    assert not orderings.above(np.array(first), second)


def test_a_single_seed_allows_nothing():
    assert orderings.not_below(np.array([9.0]), np.array([9.0]))
    assert not orderings.not_below(np.array([8.9]), np.array([9.0]))


def test_one_method_that_is_as_good_as_deprl_fails_its_row_alone(place):
    known = tables.beside_servers(place, TABLE1, TABLE7)
    found = {cell: known[cell] + SEEDS for cell in (*RING_CELLS, *SERVER_CELLS)}
    assert failed(orderings.deprl_is_best(found)) == []
    found["fedrod", "Ring", 0.3] = found["deprl", "Ring", 0.3]
    assert failed(orderings.deprl_is_best(found)) == ["alpha 0.3, Ring: DePRL, FedRoD (the best other; %)"]


@pytest.fixture
def trained(monkeypatch, place):
    """Replaces training by curves that hold the paper's accuracies for every seed, and for new clients those of
    Tables 2 and 8."""
    seen = tables.beside_servers(place, TABLE1, TABLE7)
    new = tables.beside_servers(place, TABLE2, TABLE8)
    names = {tables.folder(*cell): cell for cell in seen}

    def curves(place, sweeps):
        return {name: SimpleNamespace(cell=names[name]) for sweep in sweeps for name in sweep.names}

    monkeypatch.setattr(tables, "curves", curves)
    monkeypatch.setattr(tables, "final", lambda curve: seen[curve.cell] + SEEDS)
    monkeypatch.setattr(tables, "new_accuracy", lambda curve, clients: new[curve.cell] + SEEDS)


@pytest.mark.parametrize(
    ("item", "groups", "line"),
    [
        (
            "table1",
            [9, 9, 9],
            "| 0.1   | Ring       | 77.45 ± 1.00 (77.45) | 95.74 ± 1.00 (95.74) | 96.66 ± 1.00 (96.66) |",
        ),
        ("table2", [9], "| 0.1   | Ring       | 84.76 ± 1.00 (84.76) | 83.72 ± 1.00 (83.72) | 87.34 ± 1.00 (87.34) |"),
        ("table7", [3], "96.66 ± 1.00 (96.66) | 84.19 ± 1.00 (84.19) | 94.27 ± 1.00 (94.27) | 95.23 ± 1.00 (95.23) |"),
        ("table8", [3], "87.34 ± 1.00 (87.34) | 83.78 ± 1.00 (83.78) | 86.12 ± 1.00 (86.12) | 84.24 ± 1.00 (84.24) |"),
    ],
)
def test_a_table_shows_ours_beside_the_papers_and_counts_what_holds(item, groups, line, trained, place):
    found = getattr(tables, f"{item}_claims")(place)
    assert (len(found), failed(found)) == (sum(groups), [])
    text = (place.folder / f"{item}.md").read_text()
    assert line in text
    assert [int(each.rpartition(" of ")[2]) for each in text.splitlines() if each.startswith("- ")] == groups


def test_new_clients_of_a_run_are_tested_once(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(newcomers, "_test", lambda run, clients: asked.append(clients) or clients / 100)
    curve = SimpleNamespace(runs=[SimpleNamespace(folder=tmp_path)])
    for clients in (16, 64, 16):
        assert newcomers.new_accuracy(curve, clients).tolist() == [clients]
    assert asked == [16, 64]
