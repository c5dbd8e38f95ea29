"""Reports of suites, of results that are written here as tables."""

import re
from itertools import product
from math import inf, isnan, sqrt

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pfl_lightning.errors import PflError
from pfl_lightning.report import read_results, write_suite_report
from pfl_lightning.report.measures import half_width
from pfl_lightning.report.suite_report import (
    critical_difference,
    curves_figure,
    data_table,
    difference_table,
    rank_figure,
    rank_table,
    ranks_of,
)
from pfl_lightning.report.suite_results import SuiteResults, check_same_suite
from pfl_lightning.score_kind import ACCURACY, LOSS

SUITE = {
    "data": {"a": ["--x=1"], "b": ["--x=2"]},
    "settings": {"a": {"data.x": 1}, "b": {"data.x": 2}},
    "seeds": [1, 2, 3],
    "search": [],
    "trials": 3,
}
ALONE = {**SUITE, "data": {"a": ["--x=1"]}, "settings": {"a": {"data.x": 1}}}
MEANS = {  # by data set and method, of the seeds 1, 2 and 3
    ("a", "Local"): (0.5, 0.6, 0.7),
    ("a", "FedAvg"): (0.6, 0.71, 0.82),
    ("a", "Ditto"): (0.6, 0.9, 0.1),
    ("b", "Local"): (2.0, 2.1, 2.2),
    ("b", "FedAvg"): (1.0, 1.1, np.nan),
    ("b", "Ditto"): (3.0, 0.5, 0.7),
}


def made(means=MEANS, suite=SUITE):
    rows = [
        {
            "data": data,
            "method": label.lower(),
            "label": label,
            "seed": seed,
            "model": "global",
            "round": 10,
            "mean": mean,
        }
        for (data, label), values in means.items()
        for seed, mean in enumerate(values, start=1)
    ]
    scores = pd.DataFrame(rows).assign(
        worst_tenth=0.25, shared=np.nan, bits=2e9, samples=3e6, time=1500.0, diverged=False
    )
    scores = scores.assign(chosen="lr=0.1", seconds=12.34)
    points = [{**row, "round": at, "mean": at / 10 * row["mean"]} for row, at in product(rows, (0, 5, 10))]
    curves = pd.DataFrame(points)[["data", "method", "label", "seed", "round", "mean"]]
    names = suite["data"]
    kinds = {name: kind for name, kind in {"a": ACCURACY, "b": LOSS, "c": ACCURACY}.items() if name in names}
    return SuiteResults(suite, kinds, scores, curves, {"a": "1234", "b": None})


@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_has_the_published_quantiles(methods, quantile):
    """Demsar (2006), Table 5 (a): q at 0.05."""
    expected = quantile * sqrt(methods * (methods + 1) / (6 * 7))
    assert critical_difference(methods, 7) == pytest.approx(expected, rel=3e-4)


def test_intervals_are_those_of_a_paired_t_test():
    first, second = np.random.default_rng(0).normal(size=(2, 6))
    low, high = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert half_width(first - second) == pytest.approx((high - low) / 2)
    assert half_width(first[:1]) == inf


def test_ranks_are_of_each_seed_ties_are_shared_and_a_run_without_a_score_comes_last():
    ranks = ranks_of(made())
    expected = {
        "Local": [3, 3, 2, 2, 3, 2],
        "FedAvg": [1.5, 2, 1, 1, 2, 3],  # the smaller loss is better on b
        "Ditto": [1.5, 1, 3, 3, 1, 1],
    }
    assert ranks.of_blocks[list(expected)].to_numpy().T.tolist() == list(expected.values())
    assert ranks.mean.index.tolist() in (["FedAvg", "Ditto", "Local"], ["Ditto", "FedAvg", "Local"])
    assert ranks.mean["Local"] == 2.5
    assert ranks.critical_difference == critical_difference(methods=3, blocks=6)
    expected_p = stats.friedmanchisquare(*(values for values in expected.values())).pvalue
    assert ranks.p_value == pytest.approx(expected_p)


def test_a_method_that_lacks_a_data_set_or_a_seed_is_named_and_not_ranked():
    means = {**MEANS, ("a", "FedRep"): (0.9, 0.9, 0.9), ("b", "Ditto"): (1.0, 2.0)}
    ranks = ranks_of(made(means))
    assert set(ranks.of_blocks) == {"Local", "FedAvg"}
    assert ranks.left_out == ["Ditto", "FedRep"]
    assert "Not everywhere finished: Ditto, FedRep" in rank_table(ranks).text
    assert isnan(ranks.p_value)


def test_the_table_of_a_data_set_has_the_best_first_and_says_what_diverged():
    results = made()
    results.scores.loc[lambda rows: (rows["label"] == "Ditto") & (rows["seed"] == 3), "diverged"] = True
    table = data_table(results, "a")
    assert [row["method"] for row in table.rows] == ["FedAvg", "Local", "Ditto (1 of 3 diverged)"]
    assert (
        "| FedAvg                  | lr=0.1 | 71.0 ± 11.0 | 25.0 ± 0.0 | -            "
        "| 2    | 3               | 1,500       | 12.3 |"
    ) in table.text
    assert "| Gbit | million samples | simulated s |" in table.text
    assert r"\textbf{71.0 $\pm$ 11.0}" in table.latex
    losses = data_table(results, "b").rows
    assert [row["method"] for row in losses] == ["Ditto (1 of 3 diverged)", "Local", "FedAvg"]


def test_differences_are_paired_by_seed_and_bold_if_zero_is_not_in_their_interval():
    table = difference_table(made(), "Local", ["FedAvg", "Ditto", "Local"])
    first = next(row for row in table.rows if row["data"] == "a" and row["method"] == "FedAvg")
    half = stats.t.ppf(0.975, 2) * 0.01 / sqrt(3)
    assert first["difference"] == pytest.approx(0.11)
    assert first["half"] == pytest.approx(half)
    assert "| **+11.0 ± 2.5** |" in table.text
    assert re.search(r"\| Ditto +\| -6.7 ± \d", table.text)
    one_diverged = next(row for row in table.rows if row["data"] == "b" and row["method"] == "FedAvg")
    assert np.isnan(one_diverged["difference"])
    assert re.search(r"\| FedAvg \| .* \| - +\|", table.text), "the other seeds alone would flatter it"
    assert {row["method"] for row in table.rows} == {"FedAvg", "Ditto"}


def test_a_report_is_the_same_from_kept_results_and_when_it_is_drawn_again(tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    results = made()
    for folder in folders:
        folder.mkdir()
        results.write(folder)
        write_suite_report(results, ["Local", "FedAvg-FT"], ["png", "svg"], folder)
        results = read_results(folder)
    files = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    expected = {"scores.csv", "report.md", "ranks.png", "curves_a.svg", "table_b.csv", "table_a.tex", "minus_Local.csv"}
    assert expected <= {*files[0]}
    assert files[0] == files[1]
    for name in files[0]:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_results_on_some_data_sets_are_those_of_a_suite_without_the_others(tmp_path):
    some = made().on(["a"])
    assert [*some.suite["data"]] == [*some.suite["settings"]] == [*some.score_kinds] == [*some.contents] == ["a"]
    assert {*some.scores["data"]} == {*some.curves["data"]} == {"a"}
    assert len(some.scores) == sum(made().scores["data"] == "a")
    assert "b" in made().suite["data"]


def test_results_of_others_are_put_beside_ones_own_which_count(tmp_path):
    own = made({("a", "Mine"): (0.1, 0.2, 0.3), ("a", "Local"): (0.0, 0.0, 0.0)}, ALONE)
    check_same_suite(own.suite, made(), tmp_path)
    both = own.beside(made())
    means = both.scores.groupby(["data", "label"])["mean"].mean()
    assert means["a", "Local"] == 0
    assert means["b", "Local"] == pytest.approx(2.1)
    assert means["a", "Mine"] == pytest.approx(0.2)
    assert set(both.score_kinds) == {"a", "b"}
    assert len(both.curves) == 3 * len(both.scores)
    other = made(suite={**SUITE, "data": {**SUITE["data"], "a": ["--x=3"]}})
    with pytest.raises(PflError, match=r"beside: data.a: \['--x=3'\] in '.*', \['--x=1'\] here; compare results of"):
        check_same_suite(own.suite, other, tmp_path)
    other = made(suite={**SUITE, "settings": {**SUITE["settings"], "a": {"data.x": 4}}})
    with pytest.raises(PflError, match=r"beside: settings.a.data.x: 4 in '.*', 1 here; compare results of"):
        check_same_suite(own.suite, other, tmp_path)
    assert own.beside(made()._replace(contents={"b": "5678"})).contents == {"a": "1234", "b": None}
    with pytest.raises(PflError, match="beside: the files of a hold other samples here than for the kept results"):
        own.beside(made()._replace(contents={"a": "5678"}))


def test_a_report_says_what_it_has_no_results_of(tmp_path):
    results = made()
    results.score_kinds.pop("b")  # as where all runs diverged
    said = write_suite_report(results, ["Local", "FedAvgFT"], ["png"], tmp_path)
    for text in (said, (tmp_path / "report.md").read_text()):
        assert "Every run on b has diverged." in text
        assert "No differences from FedAvgFT: it has no results here." in text
        assert "No differences from Local" not in text


def test_of_several_settings_of_a_class_that_of_its_name_keeps_the_name_whatever_comes_first():
    own = made({("a", "Local"): (0.1, 0.2, 0.3)}, ALONE)
    own.scores["method"] = own.curves["method"] = "local-slow"
    orders = [own.beside(made()).with_unique_labels(), made().beside(own).with_unique_labels()]
    for table in (table for both in orders for table in (both.scores, both.curves)):
        assert set(table.loc[table["method"] == "local-slow", "label"]) == {"Local (local-slow)"}
        assert set(table.loc[table["method"] == "local", "label"]) == {"Local"}


def test_figures_have_a_panel_and_a_bar_for_each_method():
    figure = rank_figure(ranks_of(made()))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ranks_of(made()).mean.index.tolist()
    panels = curves_figure(made(), "a", ["Local"]).axes
    assert [axes.get_title() for axes in panels] == ["FedAvg", "Local", "Ditto"]
    assert [len(axes.lines) for axes in panels] == [2, 1, 2]  # the reference in grey, but not beside itself
    losses = curves_figure(made(), "b", []).axes
    assert [axes.get_title() for axes in losses] == ["FedAvg", "Ditto", "Local"]  # by the seeds that did not diverge
    np.testing.assert_allclose(panels[0].lines[-1].get_ydata(), [0, 35.5, 71])
