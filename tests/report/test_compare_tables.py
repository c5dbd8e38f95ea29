import csv
from math import isnan, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from fakes.curves import curves
from rich.markdown import Markdown

from pfl_lightning.report import write_csv
from pfl_lightning.report.compare_tables import (
    convergence_table,
    cost_table,
    error_table,
    final_table,
    time_table,
    usual_targets,
)
from pfl_lightning.report.measures import COMMUNICATION
from pfl_lightning.report.run_files import LABEL, read_label
from pfl_lightning.score_kind import LOSS


def cells(text):
    """The cells of a Markdown table behind its title, without the line under its header."""
    _, empty, header, line, *rows = text.splitlines()
    assert (empty, set(line)) == ("", {"|", "-"})
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (header, *rows)]


NAMES = [
    '=HYPERLINK("http://x","y")',
    "+1",
    "-cmd|calc",
    "@SUM(1)",
    "<script>alert(1)</script>",
    "\\<img src=http://x/a.png>",
    "![a](http://x/a.png)",
    "[a](http://x), lr < 1, hidden=[8]",
    "\\|a|b",
    "a\n\n# b\n<!--",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_table_is_shown_and_not_obeyed(name, write_run, tmp_path):
    folder = write_run("run", {"stored": [[0.5]]})
    (folder / LABEL).write_text(read_label(folder)._replace(name=name, method=name).text)
    found = curves(folder)
    for table in (final_table(found), time_table(found, [0.1], [0]), error_table(found), convergence_table(found, [0])):
        inner = [token for token in Markdown(table.text).parsed if token.type == "inline"]
        parts = [part for token in inner for part in token.children]
        assert {part.type for part in parts} <= {"text", "text_special"}
        shown = ["".join(part.content for part in token.children) for token in inner]
        assert " ".join(name.split()) in shown
        write_csv(table.rows, tmp_path / "table.csv")
        (row,) = csv.DictReader((tmp_path / "table.csv").read_text().splitlines(keepends=True))
        assert row["method"] in (name, f"'{name}")
        assert row["method"][0] not in "=+-@"


def test_the_final_table_is_of_the_last_evaluation_never_of_the_best(write_run):
    found = curves(write_run("run", {"stored": [[1.0, 1.0, 1.0], [0.2, 0.4, 0.9]]}))
    table = final_table(found)
    (row,) = table.rows
    # deviations -.3, -.1 and .4; percentiles lie between neighbours: p10 = .2 + .2 (.4 - .2), p90 = .4 + .8 (.9 - .4)
    expected = {
        "mean": 0.5,
        "std over clients": sqrt((0.09 + 0.01 + 0.16) / 3),
        "worst 10 %": 0.2,
        "worst": 0.2,
        "p10": 0.24,
        "p50": 0.4,
        "p90": 0.8,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert all(isnan(row[f"{name}_seed_std"]) for name in expected)
    header, line = cells(table.text)
    assert header == [
        "method",
        "seeds",
        "round",
        "mean",
        "std over clients",
        "worst 10 %",
        "worst",
        "p10",
        "p50",
        "p90",
    ]
    assert line == ["FedRep", "1", "10", "50.0", "29.4", "20.0", "20.0", "24.0", "40.0", "80.0"]


@pytest.mark.parametrize("score_name", ["accuracy", "loss"])
def test_the_worst_tenth_of_the_clients_has_their_mean_score(score_name, write_run):
    scores = [0.01 * client for client in range(30)]
    (row,) = final_table(curves(write_run("run", {"stored": [scores]}, score_name=score_name))).rows
    worst = scores[:3] if score_name == "accuracy" else scores[-3:]
    assert row["worst 10 %"] == pytest.approx(sum(worst) / 3)


def test_the_latex_table_has_the_best_of_each_column_in_bold(write_run):
    found = curves(
        write_run("one", {"stored": [[0.2, 0.6]]}, model={"head_epochs": 1}),
        write_run("two", {"stored": [[0.1, 0.9]]}, model={"head_epochs": 2}),
    )
    assert r"mean $\pm$ standard deviation over seeds: seeds 1, round " in final_table(found).latex
    _, *lines = [line.strip(" \\").split(" & ") for line in final_table(found).latex.splitlines() if " & " in line]
    assert lines == [
        [
            r"FedRep, head\_epochs=1",
            "40.0",
            *(rf"\textbf{{{best}}}" for best in ("20.0", "20.0", "20.0", "24.0")),
            "40.0",
            "56.0",
        ],
        [
            r"FedRep, head\_epochs=2",
            r"\textbf{50.0}",
            "40.0",
            "10.0",
            "10.0",
            "18.0",
            r"\textbf{50.0}",
            r"\textbf{82.0}",
        ],
    ]


def test_the_final_table_has_mean_and_sample_deviation_over_the_seeds(write_run):
    found = curves(*(write_run(str(seed), {"stored": [[0.1 * seed, 0.5]]}, seed=seed) for seed in (1, 2, 3)))
    table = final_table(found)
    (row,) = table.rows
    # worst .1, .2 and .3; means .3, .35 and .4
    assert (row["worst"], row["worst_seed_std"]) == pytest.approx((0.2, 0.1))
    assert (row["mean"], row["mean_seed_std"]) == pytest.approx((0.35, 0.05))
    assert cells(table.text)[1][3] == "35.0 ± 5.0"


def test_the_worst_loss_is_the_largest_and_needs_no_correct_predictions(write_run):
    found = curves(write_run("run", {"stored": [[1.5, 2.5]]}, score_name="loss"))
    assert final_table(found).rows[0]["worst"] == 2.5
    assert cells(final_table(found).text)[1][3:7] == ["2.0000", "0.5000", "2.5000", "2.5000"]
    (row,) = error_table(found).rows
    assert (row["mean"], row["worst"]) == (2.0, 2.5)
    assert error_table(found).text.startswith("Clients' test loss at the last evaluation")


def test_the_usual_targets_are_shares_of_the_best_method_without_doubling(write_run, doubling):
    found = curves(
        write_run("one", {"stored": [[1.0], [0.6]]}, "Local"),
        write_run("two", {"stored": [[0.0], [0.8]]}),
        write_run("three", {"stored": [[0.0], [0.9]]}, callbacks=[doubling]),
    )
    assert usual_targets(found) == pytest.approx([0.72, 0.76, 0.792])
    assert usual_targets(found[-1:]) == pytest.approx([0.81, 0.855, 0.891])
    loss = curves(write_run("four", {"stored": [[1.8]]}, score_name="loss"))
    assert usual_targets(loss) == pytest.approx([2, 1.8 / 0.95, 1.8 / 0.99])
    diverged = [SimpleNamespace(means=np.array([[np.nan]]), doubled=False, score_kind=LOSS)]
    assert usual_targets([*diverged, *loss]) == usual_targets([*loss, *diverged]) == usual_targets(loss)


@pytest.fixture
def raced(write_run, doubling):
    """FedRep reaches 60 % after 40 s and 20 rounds, FedRep-SRPFL after 10 s; one of its seeds has 70 %."""
    rising = {"finetuned": [[0.1], [0.3], [0.6]]}
    return curves(
        write_run("plain", rising, compute=[0, 20, 40]),
        write_run("doubled", rising, compute=[0, 2, 10], callbacks=[doubling]),
        write_run("other", {"finetuned": [[0.1], [0.6], [0.7]]}, compute=[0, 10, 30], callbacks=[doubling], seed=2),
    )


def test_the_table_of_times_has_the_mean_over_seeds_and_the_ratio_to_no_doubling(raced):
    rows, text = time_table(raced, [0.6, 0.7], [0, 10])[1:3]
    by_key = {(row["target"], row["method"], row["communication_time"]): row for row in rows}
    # seeds: 10 s after 20 rounds, and 10 s after 10 rounds, of 10 s of communication each
    doubled = by_key[0.6, "FedRep-SRPFL", 10]
    assert (doubled["after_seconds"], doubled["seconds"]) == ((102 + 0) / 2, (210 + 110) / 2)
    assert doubled["ratio"] == pytest.approx(160 / 240)
    assert by_key[0.6, "FedRep-SRPFL", 0]["ratio"] == 0.25
    assert isnan(by_key[0.6, "FedRep", 0]["ratio"])
    never = by_key[0.7, "FedRep-SRPFL", 0]
    assert (isnan(never["seconds"]), never["reached"], never["seeds"]) == (True, 1, 2)
    assert cells(text) == [
        ["accuracy (%)", "method", "communication 0 s", "communication 10 s"],
        ["60.0", "FedRep", "20 to 40", "120 to 240"],
        ["60.0", "FedRep-SRPFL", "1 to 10 (0.25)", "51 to 160 (0.67)"],
        ["70.0", "FedRep", "-", "-"],
        ["70.0", "FedRep-SRPFL", "- (1/2 seeds)", "- (1/2 seeds)"],
    ]


def test_a_score_that_the_start_model_has_takes_no_time_and_has_no_ratio(raced):
    rows = time_table(raced, [0.1], [0]).rows
    assert [(row["seconds"], isnan(row["ratio"])) for row in rows] == [(0, True), (0, True)]


def test_a_ratio_needs_the_same_settings_apart_from_doubling_and_length(write_run, doubling):
    rising = {"stored": [[0.1], [0.6]]}
    quick = write_run("quick", rising, compute=[0, 2], callbacks=[doubling], trainer={"max_steps": 99})
    for name, model, ratio in (("same", {}, 0.5), ("other", {"local": {"lr": 0.7}}, None)):
        plain = write_run(name, rising, compute=[0, 4], model=model)
        row = time_table(curves(plain, quick), [0.6], [0]).rows[1]
        assert row["method"] == "FedRep-SRPFL"
        assert row["ratio"] == ratio if ratio else isnan(row["ratio"])


def test_a_csv_has_an_empty_cell_for_what_is_not_known(raced, tmp_path):
    write_csv(time_table(raced, [0.7], [0]).rows, tmp_path / "times.csv")
    with (tmp_path / "times.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["seconds"], row["reached"]) for row in rows] == [
        ("FedRep", "", "0"),
        ("FedRep-SRPFL", "", "1"),
    ]


def test_the_table_of_convergence_has_the_mean_over_seeds_where_all_have_converged(write_run, log):
    # the fifteenth loss ends ten rounds in which the mean of five stays 1; round k ends after 2 k seconds
    runs = {
        ("FedRep", 1): dict.fromkeys(range(1, 24), 1.0),  # it was stopped after its last evaluation
        ("FedRep", 2): {n: max(1.0, 6.0 - n) for n in range(1, 21)},  # 1 from round 5, so the mean is 1 from round 9
        ("Local", 1): {n: 0.9**n for n in range(1, 21)},
    }
    folders = []
    for (method, seed), losses in runs.items():
        folder = write_run(f"{method}-{seed}", {"stored": [[0.1], [0.6], [0.7]]}, method, seed=seed)
        folders.append(log(log(folder, "train/loss", losses), "time/compute", {n: 2.0 * n for n in range(21)}))
    found = curves(*folders)
    assert all(curve.logs_losses() for curve in found)
    assert not curves(write_run("none", {"stored": [[0.1], [0.6]]}))[0].logs_losses()
    (diverged,) = curves(write_run("diverged", {"stored": [[0.1]]}, compute=[0]))
    assert cells(convergence_table([diverged], [0])[2])[1:] == [["FedRep", "-", "-"]]
    rows, text = convergence_table(found, [0, 10])[1:3]
    first, _, never, _ = rows
    assert (first["round"], first["seconds"], first["reached"]) == ((15 + 19) / 2, (30 + 38) / 2, 2)
    assert (isnan(never["seconds"]), never["reached"]) == (True, 0)
    assert cells(text) == [
        ["method", "round", "communication 0 s", "communication 10 s"],
        ["FedRep", "17", "34", "204"],
        ["Local", "-", "-", "-"],
    ]


def test_the_bits_to_a_target_are_those_of_the_first_evaluation_that_has_it(write_run, log):
    folders = [
        write_run("one", {"stored": [[0.1], [0.7], [0.8]]}),
        write_run("two", {"stored": [[0.1], [0.7]]}, seed=2),
    ]
    for folder, sent in zip(folders, (3e6, 5e6), strict=True):
        log(folder, "bits/total", {5: sent / 2, 10: sent, 20: 2 * sent})
    rows, text = cost_table(curves(*folders), [0.7, 0.8], COMMUNICATION)[1:3]
    assert [(row["after_bits"], row["bits"], row["reached"]) for row in rows[:1]] == [(0, 4e6, 2)]
    assert (isnan(rows[1]["bits"]), rows[1]["reached"]) == (True, 0), "the seeds share two evaluations"
    header, *lines = cells(text)
    assert header == ["accuracy (%)", "method", "Mbit"]
    assert lines == [["70.0", "FedRep", "0 to 4"], ["80.0", "FedRep", "-"]]


ERRORS = {1: [0.1, 0.2, 0.3, 0.6], 2: [0.1, 0.2, 0.3, 0.8]}  # of four clients, by seed
LESS_TAIL = {1: [0.2, 0.3, 0.4, 0.4], 2: [0.2, 0.3, 0.4, 0.5], 3: [0.0, 0.0, 0.0, 0.0]}


@pytest.fixture
def delta_fl(write_run):
    """Makes run folders of Delta-FL from errors by seed."""

    def make(conformity, errors, **settings):
        return [
            write_run(
                f"{conformity}-{seed}",
                {"global": [[1 - error for error in clients]]},
                "DeltaFL",
                seed=seed,
                model={"conformity": conformity},
                **settings,
            )
            for seed, clients in errors.items()
        ]

    return make


def test_the_table_of_errors_has_means_over_seeds_of_statistics_over_clients(delta_fl):
    table = error_table(curves(*delta_fl(1.0, ERRORS)))
    (row,) = table.rows
    for name, percentile in (("p10", 10), ("p50", 50), ("p90", 90), ("worst", 100)):
        values = [np.percentile(errors, percentile) for errors in ERRORS.values()]
        assert row[name] == pytest.approx(np.mean(values)), name
        assert row[f"{name}_seed_std"] == pytest.approx(np.std(values, ddof=1)), name
    # means .3 and .35; the worst of four clients is more than a tenth of them
    assert (row["mean"], row["mean_seed_std"]) == pytest.approx((0.325, 0.05 / sqrt(2)))
    assert row["superquantile 10 %"] == pytest.approx(0.7)
    assert "minus" not in table.text, "one curve has nothing to be compared with"


def test_what_the_tail_gains_and_the_mean_pays_is_paired_by_seed(delta_fl):
    folders = delta_fl(0.5, LESS_TAIL) + delta_fl(1.0, ERRORS)
    table = error_table(curves(*folders))
    tail, reference = table.rows
    # means .325 - .3 and .35 - .35 of the seeds 1 and 2; seed 3 has no partner
    assert tail["mean difference"] == pytest.approx(0.0125)
    assert tail["mean difference_seed_std"] == pytest.approx(0.025 / sqrt(2))
    # p90 lies at .7 between the third and the fourth client: .4 and .47, of the reference .51 and .65
    assert tail["p90 difference"] == pytest.approx((0.4 - 0.51 + 0.47 - 0.65) / 2)
    assert reference["p90 difference"] == 0
    assert "minus that of Delta-FL, conformity=1.0 with the same seed" in table.text
    assert "| Delta-FL, conformity=0.5 | +1.3 ± 1.8 | -14.5 ± 4.9 | " in table.text
    alone, _ = error_table(curves(folders[2], *folders[3:])).rows
    assert isnan(alone["mean difference"]), "seed 3 alone has no partner"


def test_training_losses_are_weighted_by_samples(delta_fl, evaluate):
    folders = [
        evaluate(folder, "train", [[1.0, 2.0, 9.0]], samples=samples, first=4)
        for folder, samples in zip(delta_fl(1.0, ERRORS), ([50, 40, 10], [10, 10, 20]), strict=True)
    ]
    (row,) = error_table(curves(*folders)).rows
    # 2 is where 90 of 100 samples are reached, and 9 where 36 of 40 are
    assert row["train loss mean"] == pytest.approx((2.2 + 5.25) / 2)
    assert row["train loss p90"] == pytest.approx((2 + 9) / 2)
