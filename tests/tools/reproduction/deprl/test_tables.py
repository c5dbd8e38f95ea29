import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fakes.panels import failed
from reproduction.deprl import newcomers, orderings, tables
from reproduction.deprl.paper import TABLE1, TABLE2, TABLE7, TABLE8
from reproduction.deprl.runs import DATA
from reproduction.deprl.tables import GRAPH_CELLS, RING_CELLS, SERVER_CELLS

KINDS = (orderings.best_first, orderings.denser_is_better, orderings.by_concentration)
SEEDS = np.array([-1.0, 0.0, 1.0])  # all cells have the same good and bad seeds


@pytest.fixture
def fashion(place):
    return place("fashion_mnist", seeds=(1, 2, 3))


def accuracies(place, **changed):
    """The paper's of Table 1 for each seed, some of them changed: ``**{"deprl Ring 0.1": 50}``."""
    known = tables.numbers(place, TABLE1, GRAPH_CELLS)
    return {cell: changed.get(" ".join(map(str, cell)), value) + SEEDS for cell, value in known.items()}


@pytest.mark.parametrize("data", DATA)
def test_table_1_has_27_claims_that_the_papers_numbers_fulfil(data, place):
    claims = [claim for kind in KINDS for claim in kind(accuracies(place(data)))]
    assert (len(claims), failed(claims)) == (27, [])


@pytest.mark.parametrize(
    ("cell", "value", "wrong"),
    [
        # better than DePRL's 95.03 and DisPFL's for 0.1
        ("dispfl Complete 0.3", 95.1, [["alpha 0.3, Complete"], [], []]),
        # worse than on the ring, and than for 0.1
        ("d-psgd Complete 0.3", 80.0, [[], ["D-PSGD, alpha 0.3"], ["D-PSGD, Complete"]]),
    ],
)
def test_each_ordering_of_table_1_can_fail(cell, value, wrong, fashion):
    found = accuracies(fashion, **{cell: value})
    assert [failed(kind(found)) for kind in KINDS] == wrong


@pytest.mark.parametrize("data", DATA)
def test_with_a_server_personal_models_fall_with_alpha_and_fedavgs_rises(data, place):
    known = tables.beside_servers(place(data), TABLE1, TABLE7)
    found = {cell: known[cell] + SEEDS for cell in SERVER_CELLS}
    assert failed(orderings.by_concentration(found)) == []
    found["fedavg", "Ring", 0.3] = found["fedavg", "Ring", 0.5] + 1
    assert failed(orderings.by_concentration(found)) == ["FedAvg, Ring"]


def test_one_method_that_is_as_good_as_deprl_fails_its_row_alone(fashion):
    known = tables.beside_servers(fashion, TABLE1, TABLE7)
    found = {cell: known[cell] + SEEDS for cell in (*RING_CELLS, *SERVER_CELLS)}
    assert failed(orderings.deprl_is_best(found)) == []
    found["fedrod", "Ring", 0.3] = found["deprl", "Ring", 0.3]
    assert failed(orderings.deprl_is_best(found)) == ["alpha 0.3, Ring"]


@pytest.fixture
def trained(monkeypatch, fashion):
    """Replaces training by curves that hold the paper's accuracies for every seed, and for new clients those of
    Tables 2 and 8."""
    seen = tables.beside_servers(fashion, TABLE1, TABLE7)
    new = tables.beside_servers(fashion, TABLE2, TABLE8)
    names = {tables.folder(*cell): cell for cell in seen}

    def curves(place, sweeps):
        return {name: SimpleNamespace(cell=names[name]) for sweep in sweeps for name in sweep.names}

    monkeypatch.setattr(tables, "curves", curves)
    monkeypatch.setattr(tables, "final", lambda curve: seen[curve.cell] + SEEDS)
    monkeypatch.setattr(tables, "new_accuracy", lambda curve, clients: new[curve.cell] + SEEDS)


@pytest.mark.parametrize(
    ("item", "groups", "line"),
    [
        ("table1", [9, 9, 9], "95.74 ± 1.00 (95.74) | 96.66 ± 1.00 (96.66)"),
        ("table2", [9], "83.72 ± 1.00 (83.72) | 87.34 ± 1.00 (87.34)"),
        ("table7", [3, 4], "96.66 ± 1.00 (96.66) | 84.19 ± 1.00 (84.19)"),
        ("table8", [3], "87.34 ± 1.00 (87.34) | 83.78 ± 1.00 (83.78)"),
    ],
)
def test_a_table_shows_ours_beside_the_papers_and_counts_what_holds(item, groups, line, trained, fashion):
    found = getattr(tables, f"{item}_claims")(fashion)
    assert (len(found), failed(found)) == (sum(groups), [])
    text = (fashion.folder / f"{item}.md").read_text()
    assert line in text
    assert all(each.printed.split(", ") == re.findall(r"[\d.]+(?= ±)", each.measured) for each in found)
    verdicts = [each.rpartition(": ")[2] for each in text.splitlines() if each.startswith("- ")]
    assert verdicts == [f"{number} holds" for number in groups]


def test_two_cores_show_the_smallest_alpha_alone(trained, fashion):
    place = fashion._replace(scale="two_cores")
    found = tables.table1_claims(place)
    assert [claim.claim.partition(":")[0] for claim in found] == [
        *("alpha 0.1, Ring", "alpha 0.1, ErdosRenyi", "alpha 0.1, Complete"),
        *("D-PSGD, alpha 0.1", "DisPFL, alpha 0.1", "DePRL, alpha 0.1"),
    ]
    claim = found[3]
    assert (claim.claim, claim.printed) == ("D-PSGD, alpha 0.1: Ring, ErdosRenyi, Complete (%)", "77.45, 84.74, 87.24")
    text = (place.folder / "table1.md").read_text()
    assert ("| 0.1" in text, "| 0.3" in text) == (True, False)
    others = (tables.table2_claims, tables.table7_claims, tables.table8_claims)
    assert [len(check(place)) for check in others] == [3, 1, 1]


def test_a_convolutional_network_has_runs_of_its_own_on_two_graphs(trained, fashion, monkeypatch):
    asked, curves = [], tables.curves
    monkeypatch.setattr(tables, "curves", lambda place, sweeps: asked.append(place) or curves(place, sweeps))
    place = fashion._replace(scale="two_cores")
    place.folder.joinpath("lenet").mkdir()
    (claim,) = tables.lenet_claims(place)
    assert (claim.claim, claim.printed) == ("D-PSGD, alpha 0.1: Ring, Complete (%)", "77.45, 87.24")
    (here,) = asked
    assert (here.folder, here.options[-2:]) == (place.folder / "lenet", [*tables.LENET])


def test_new_clients_of_a_run_are_tested_once(monkeypatch, tmp_path):
    asked = []

    def test(folder, new_clients, new_samples):
        asked.append((new_clients, new_samples))
        rows = [("test", "stored", 0.0), *(("test", "finetuned", new_clients / 50 * each) for each in (0, 1))]
        return pd.DataFrame([*rows, ("train", "finetuned", 0.0)], columns=["split", "model", "accuracy"])

    monkeypatch.setattr("pfl_lightning.Run", lambda folder: SimpleNamespace(test=partial(test, folder)))
    curve = SimpleNamespace(runs=[SimpleNamespace(folder=tmp_path)])
    for clients, samples in ((16, None), (64, None), (16, None), (16, 5), (16, 5)):
        assert newcomers.new_accuracy(curve, clients, samples).tolist() == [clients]
    assert asked == [(16, None), (64, None), (16, 5)]
