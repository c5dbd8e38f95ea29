"""Tables, pictures, and what a table or figure makes of its runs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fakes.panels import FAST, SLOW
from reproduction import check, pictures, tables
from reproduction.claims import HOLDS
from reproduction.items import Item, kind_of

HIGH, LOW = np.array([2.0, 4.0]), np.array([1.0, 3.0])


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize(
    ("column", "block", "expected"),
    [
        ({"of": "high"}, {}, "3.00 ± 1.41"),
        ({"of": "high", "digits": 1, "style": "mean"}, {}, "3.0"),
        ({"of": "high"}, {"printed": "g"}, "3.00 ± 1.41 (7.5)"),
        ({"of": "high"}, {"printed": ".2f"}, "3.00 ± 1.41 (7.50)"),
        ({"of": "low"}, {"printed": ".2f"}, "2.00 ± 1.41"),
        ({"of": "high", "style": "printed"}, {}, "7.5"),
        ({"of": "low", "style": "printed"}, {}, "-"),
        ({"of": "high none"}, {}, "-"),
        ({"of": "early"}, {"nan": "ended early"}, "1.00 (ended early for 1 of 2 seeds)"),
        ({"of": "early"}, {"whole": True}, "-"),
        ({"of": "high", "minus": "low", "style": "interval"}, {}, "1.00 ± 0.00"),
        ({"of": "early", "style": "interval"}, {}, "1.00 (ended early for 1 of 2 seeds)"),
        ({"of": "low", "style": "least"}, {}, "1"),
        ("text", {}, "text"),
    ],
    ids=str,
)
def test_a_cell_shows_values_in_its_style(column, block, expected, results):
    values = {"high": HIGH, "low": LOW, "early": np.array([1.0, np.nan])}
    table = tables.Table(name="n", title="t", rows=[], columns={}, **block)
    shown = column if isinstance(column, str) else tables.Column(**column)
    assert tables.cell(shown, table, results(values, printed={"high": 7.5})) == expected


def test_differences_have_the_interval_of_their_own_mean():
    assert (
        tables.interval(np.arange(1.0, 4)) == "2.00 ± 2.48"
    )  # t with two degrees of freedom is 4.303, by the root of three
    assert tables.interval(np.array([np.nan, 1.0, -2.0])) == "-0.50 ± 19.06 (2 of 3 seeds)"
    assert tables.interval(np.array([np.nan, np.nan])) == "ended early"


@pytest.mark.parametrize(
    ("accuracies", "chosen"),
    [
        ((80, 85, 84.5), "0.1"),
        ((80, 85, 83), "0.03"),
        ((86, 85.5, np.nan), "0.03"),
        ((90, 80, 70), "0.01"),
        ([np.nan] * 3, "-"),
    ],
)
def test_the_largest_rate_is_chosen_that_is_not_worse_than_the_best(accuracies, chosen, results):
    values = dict(zip("abc", accuracies, strict=True))
    column = tables.Column(measure="last_mean", within=1.0)
    assert tables.choice(dict(zip("abc", (0.01, 0.03, 0.1), strict=True)), column, results(values)) == chosen


@pytest.fixture
def trained(results, monkeypatch):
    """Replaces training by made-up values; ``check`` then makes the table or figure of these."""

    def make(values, **settings):
        made = results(values, **settings)
        monkeypatch.setattr(check, "results_of", lambda part: made)
        monkeypatch.setattr(check, "compare", lambda place, runs, name: (place.folder / name).touch())
        return made, check.check([made.part])

    return make


def test_a_table_of_deprl_shows_ours_beside_the_papers_counts_what_holds_and_claims_follow_the_papers_numbers(trained):
    values = {}
    for row in range(27):
        alpha, graph, method = (0.1, 0.3, 0.5)[row // 9], ("Ring", "ErdosRenyi", "Complete")[row // 3 % 3], row % 3
        name = f"{('d-psgd', 'dispfl', 'deprl')[method]},topology={graph},alpha={alpha}"
        falls = -1 if method else 1
        values[name] = 50 + 10 * method + row // 3 % 3 + falls * alpha + np.array([-1.0, 1.0])
    made, claims = trained(values)
    assert [claim.verdict for claim in claims] == [HOLDS] * 27
    assert claims[0].claim == "fashion_mnist: alpha 0.1, Ring: DePRL, DisPFL, D-PSGD (%)"
    assert claims[0].printed == "96.66, 95.74, 77.45"
    text = (made.part.place.folder / "table1.md").read_text()
    assert cells(text)[2] == ["0.1", "Ring", "50.10 ± 1.41 (77.45)", "59.90 ± 1.41 (95.74)", "69.90 ± 1.41 (96.66)"]
    verdicts = [line.rpartition(": ")[2] for line in text.splitlines() if line.startswith("- ")]
    assert verdicts == ["9 holds"] * 3


def test_a_published_table_stands_beside_ours_and_above_local_and_can_be_read_again(trained):
    names = ["local", "fedavg", "fedprox", "scaffold", "fednova"]
    settings = {"paper": "niid_bench", "item": "table3", "title": "mnist-dirichlet", "scale": "full"}
    made, claims = trained(dict.fromkeys(names, 98.9 + np.array([-0.01, 0.01])), **settings)
    assert [claim.word for claim in claims] == ["holds"] * 4
    assert (claims[0].expected, claims[0].printed) == ("98.89 ± 1.00", "98.89 ± 0.07")
    rows = cells((made.part.place.folder / "table.md").read_text())
    assert rows[3][:3] == ["FedAvg", "98.89 ± 0.07", "98.90 ± 0.01"]
    assert rows[-1] == ["FedNova", "0.00 ± 0.00", "0.00 ± 0.00"]
    table = pd.read_csv(made.part.place.folder / "table.csv")
    assert list(table) == ["method", "seed", "best", "last", "mean", "worst"]
    assert table[table.method == "FedAvg-FT"].best.tolist() == [98.89, 98.91]


def test_pictures_show_values_and_speed_ups_beside_the_ideal(results):
    found = results({f"a{value}": 80.0 / value for value in (4, 8, 16)})
    block = {
        "name": "n",
        "values": [4, 8, 16],
        "lines": {"A": "a{value}"},
        "panels": [{"title": "t"}],
        "size": [4, 2],
        "xlabel": "x",
        "ylabel": "y",
    }
    (axes,) = pictures.over_values(found, **block)["n"].axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [20, 10, 5])
    (axes,) = pictures.over_values(found, **block, speedup=True)["n"].axes
    for line in axes.lines:
        np.testing.assert_allclose(line.get_ydata(), [1, 2, 4])


def test_the_picture_of_consensus_has_a_panel_for_each_concentration_and_two_lines_for_each_graph():
    (block,) = Item("deprl", "fig10").block.pictures
    _, settings = kind_of(pictures.PICTURES, block, "pictures")
    variables = {"alphas": [0.1, 0.3], "graphs": ["Ring", "Complete"]}
    rows = pd.DataFrame({"consensus/before": [2.0, 2.0], "consensus/after": [1.0, 1.0]})
    runs = [SimpleNamespace(logged=rows)] * 2
    found = SimpleNamespace(part=SimpleNamespace(variables=variables), runs_of=lambda name: (runs, "m"))
    figure = pictures.over_rounds(found, **settings)["fig10"]
    assert [axes.get_title() for axes in figure.axes] == ["alpha = 0.1", "alpha = 0.3"]
    assert [len(axes.lines) for axes in figure.axes] == [4, 4]
    after, before = figure.axes[0].lines[:2]
    assert (before.get_linestyle(), after.get_label()) == ("--", "Ring, after mixing")
    np.testing.assert_allclose(after.get_xdata(), [0, 1, 2])
    np.testing.assert_allclose(after.get_ydata(), [0, 1, 1])


def test_a_panel_of_srpfl_sees_the_other_figure_and_is_drawn(part, monkeypatch):
    def train(place, sweeps, may_diverge):
        return {name: [] for sweep in sweeps for name in sweep.names}

    monkeypatch.setattr(check, "train", train)
    monkeypatch.setattr("reproduction.results.of_seed", lambda measure, runs, models, **options: 0.5)
    here = part(paper="srpfl", item="fig4", title="femnist")
    monkeypatch.setattr("reproduction.results.curves_of", lambda runs: [SLOW, _named(FAST)])
    claims = check.check([here])
    # the same values in both figures: everything holds but the smaller gain
    assert [claim.word for claim in claims] == ["holds", "holds", "fails"]
    assert claims[-1].claim.startswith("femnist: The gain of FedRep-SRPFL is smaller than in Fig. 3")
    assert here.place.folder.with_suffix(".png").is_file()
    assert here.place.folder.with_suffix(".csv").is_file()


@pytest.mark.parametrize(("by_samples", "word"), [(0.54, "holds"), (0.56, "fails")])
def test_doubling_of_samples_stands_beside_that_of_clients_which_is_the_usual_one(by_samples, word, part, monkeypatch):
    curves = [SLOW, _named(FAST, ", double_by=clients"), _named(FAST, ", double_by=samples")]
    made = []

    def train(place, sweeps, may_diverge):
        made.extend(name for sweep in sweeps for name in sweep.names)
        return {name: [] for name in made}

    def of_seed(measure, runs, models, **options):
        return by_samples if runs[0] is curves[2].runs[0] or runs[0] is curves[2].runs[1] else 0.5

    monkeypatch.setattr(check, "train", train)
    monkeypatch.setattr("reproduction.results.of_seed", of_seed)
    monkeypatch.setattr("reproduction.results.curves_of", lambda runs: curves)
    claims = check.check([part(paper="srpfl", item="fig8_imbalanced", title="femnist")])
    assert made == ["fedrep", "fedrep-srpfl", "by_samples/fedrep-srpfl"]
    assert [claim.word for claim in claims] == ["holds", word]
    assert claims[1].measured == f"{by_samples} ± 0.00; 0.50 ± 0.00"


def _named(curve, suffix=""):
    """The same curve with doubling."""
    runs = [replace(run, label=run.label._replace(name="FedRep-SRPFL", doubling="D")) for run in curve.runs]
    return replace(curve, runs=runs, suffix=suffix)


def test_tables_are_made_again_by_the_rates_that_validation_samples_choose(part, results, monkeypatch):
    here = part(paper="fedmac", item="searched", title="mnist_mlr")
    rates = {
        "fedmac": "lr=0.1,correlation=0.002,copy_lr=37.5,epochs=40",
        "heurfedamp": "lr=0.2,sigma=10,self_weight=0.5,epochs=20",
    }
    best = {f"search/{method},{settings}": 90.0 for method, settings in rates.items()}
    asked, made = [], []

    class Search:
        def __init__(self, part, runs, other=None):
            asked.append((part.place.seeds, list(runs)))
            self.part, self.runs = part, runs

        def values(self, name, measure):
            return np.array([best.get(name, np.nan)])

    def train(place, sweeps, may_diverge=False):
        names = [name for sweep in sweeps for name in sweep.names]
        made.extend((place.folder.name, *place.seeds, name) for name in names if place.folder.name == "searched")
        return {name: [] for name in names}

    monkeypatch.setattr(check, "Results", Search)
    monkeypatch.setattr(check, "train", train)
    monkeypatch.setattr(check, "shown", lambda results: [])
    check.results_of(here)
    (seeds, searched), (_, runs) = asked
    assert (seeds, len(searched)) == ([1], 70)
    assert sorted(runs) == ["fedavg", "fedmac", "fedprox", "heurfedamp", "per-fedavg", "pfedme"]
    rates["pfedme"] = "lr=0.05,copy_lr=0.005"  # what did not finish takes the first
    assert {("searched", 1, 2, f"{method},{settings}") for method, settings in rates.items()} <= {*made}
    assert here.variables["chosen"]["heurfedamp"] == "lr=0.2, sigma=10, self_weight=0.5, epochs=20"
