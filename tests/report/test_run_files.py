import re

import numpy as np
import pandas as pd
import pytest

from pfl_lightning.errors import PflError
from pfl_lightning.report import check_same_data, clients, read_run, results
from pfl_lightning.report.compare_curves import curves_of
from pfl_lightning.report.compare_tables import final_table
from pfl_lightning.report.run_files import CLIENTS, LABEL, read_label
from pfl_lightning.score_kind import ScoreKind

LRS = {"one": 0.1, "two": 0.2}


def test_a_run_is_its_evaluated_rounds_and_its_clients_on_the_test_split(write_run):
    run = read_run(write_run("run", {"finetuned": [[0.25, 0.5], [0.5, 0.75]], "stored": [[0, 0], [0, 1]]}, seed=7))
    assert run.rounds.tolist() == [0, 10]
    assert run.seconds(0)[run.rounds].tolist() == [0, 5]
    means = {model: run.logged[f"test/{model}/accuracy/mean"].dropna().to_dict() for model in run.models}
    assert means == {"finetuned": {0: 0.375, 10: 0.625}, "stored": {0: 0, 10: 0.5}}
    # in the order of the clients' ids, which is not that of the file
    assert run.clients["test", "finetuned", 10]["score"].tolist() == [0.5, 0.75]
    assert (run.label.method, run.seed, run.score_kind.name) == ("FedRep", 7, "accuracy")
    assert run.logged["train/loss"].dropna().to_dict() == {5: 1, 15: 1}
    regression = read_run(write_run("regression", {"finetuned": [[2.5, 1.5]]}, score_name="loss"))
    assert regression.clients["test", "finetuned", 0]["score"].tolist() == [2.5, 1.5], "their losses"


def test_a_model_that_has_diverged_leaves_the_evaluation_to_the_others(write_run):
    folder = write_run("run", {"global": [[2.5], [1.5]], "finetuned": [[2.5], [1.5]]}, score_name="loss")
    logged = pd.read_csv(folder / "metrics.csv")
    logged.loc[logged["round"] == 10, "test/finetuned/loss/mean"] = np.nan
    logged.to_csv(folder / "metrics.csv", index=False)
    run = read_run(folder)
    assert (run.rounds.tolist(), run.left_out) == ([0, 10], [])
    np.testing.assert_equal(run.logged["test/finetuned/loss/mean"][[0, 10]].tolist(), [2.5, np.nan])


def test_the_label_says_what_clients_are_evaluated_by(write_run):
    folder = write_run("run", {"global": [[0.5, 0.25, 0.75]]}, score_name="hits")
    label = read_label(folder)._replace(score=ScoreKind("hits", True, scale=10, unit=" (of 10)", digits=2))
    (folder / LABEL).write_text(label.text)
    table = pd.read_csv(folder / CLIENTS).rename(columns={"loss": "hits"})
    table.assign(loss=1.0).to_csv(folder / CLIENTS, index=False)
    run = read_run(folder)
    assert (run.score_kind, run.models) == (label.score, ["global"])
    assert run.clients["test", "global", 0]["error"].tolist() == [0.5, 0.75, 0.25]
    assert "5.00 " in final_table(curves_of([run])).text
    table.drop(columns="hits").assign(loss=1.0).to_csv(folder / CLIENTS, index=False)
    with pytest.raises(PflError, match=r"clients.csv' has no column hits; give run folders of pfl fit$"):
        read_run(folder)


def test_clients_that_a_run_leaves_out_are_left_out_of_reports(write_run, log):
    folder = write_run("run", {"global": [[2.5, 1.5]]}, score_name="loss")
    table = pd.read_csv(folder / CLIENTS)
    table.loc[table["client"] == 1, "loss"] = np.nan
    table.to_csv(folder / CLIENTS, index=False)
    assert len(read_run(folder).clients["test", "global", 0]) == 2, "a loss that is not a number has diverged"
    log(folder, "test/global/loss/left_out", {0: 1})
    assert read_run(folder).clients["test", "global", 0]["score"].tolist() == [2.5]


def test_only_classes_have_an_accuracy(write_run):
    folder = write_run("classes", {"global": [[0.5]]})
    assert clients(folder).query("split == 'test'")["accuracy"].tolist() == [0.5]
    numbers = write_run("numbers", {"global": [[0.5]]}, score_name="loss")
    pd.read_csv(numbers / CLIENTS).drop(columns="correct").to_csv(numbers / CLIENTS, index=False)
    assert "accuracy" not in clients(numbers)
    assert read_run(numbers).clients["test", "global", 0]["score"].tolist() == [0.5]


def test_an_option_of_one_method_is_a_column_if_it_differs_among_its_runs(write_run):
    one = {"global": [[0.5]]}
    fedavg = write_run("a", one, "FedAvg")
    runs = [write_run(str(n), one, "FedRep", model={"head_epochs": n}) for n in (3, 3.0, 5)]
    assert "model.head_epochs" not in results([fedavg, *runs[:2]])
    assert results([fedavg, *runs])["model.head_epochs"].tolist()[1:] == [3, 3, 5]


def test_no_folders_are_one_line():
    with pytest.raises(PflError, match=r"^folders: got none; give one or several, such as runs/"):
        results([])


def test_an_evaluation_whose_clients_are_not_written_yet_is_left_out(write_run, log):
    run = read_run(
        log(write_run("run", {"stored": [[0.5], [0.6]]}), "test/stored/accuracy/mean", {0: 0.5, 10: 0.6, 20: 1})
    )
    assert run.rounds.tolist() == [0, 10]


def test_the_sums_until_an_evaluation_are_those_that_were_logged_last(write_run, log):
    scores = {"stored": [[0.5], [0.6], [0.7]]}
    assert read_run(write_run("uncounted", scores)).counts["sums/calls"][[0, 10, 20]].tolist() == [0, 10, 20]
    counted = log(write_run("counted", scores), "sums/calls", {1: 3, 9: 27, 10: 30, 19: 57})
    assert read_run(counted).counts["sums/calls"][[0, 10, 20]].tolist() == [0, 30, 57]


def test_the_settings_are_flat_and_without_what_does_not_make_a_curve(write_run, doubling):
    data = {"root": "/here", "communication_time": 10, "speeds": {"class_path": "UniformTime"}}
    folder = write_run("run", {"stored": [[1]]}, callbacks=[doubling], data=data, trainer={"default_root_dir": "x"})
    assert read_run(folder).settings == {
        "model": "pfl_lightning.methods.FedRep",
        "model.local.lr": 0.1,
        "data": "Digits",
        "data.num_clients": 20,
        "data.speeds": "UniformTime",
        "trainer.max_steps": 30,
        "StageDoubling": "pfl_lightning.callbacks.StageDoubling",
        "StageDoubling.n0": 5,
        "StageDoubling.rounds_per_stage": 5,
    }


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"num_clients": 30}, "data.num_clients: 20 in '{0}', 30 in '{1}'"),
        ({"partition": {"class_path": "Dirichlet"}}, "data.partition: None in '{0}', Dirichlet in '{1}'"),
        ({"speeds": {"class_path": "UniformTime"}}, "data.speeds: None in '{0}', UniformTime in '{1}'"),
    ],
)
def test_runs_on_other_data_cannot_be_compared(write_run, data, line):
    folders = [write_run("one", {"stored": [[1]]}), write_run("two", {"stored": [[1]]}, data=data)]
    with pytest.raises(PflError) as wrong:
        check_same_data([read_run(folder) for folder in folders])
    assert str(wrong.value).startswith(line.format(*folders))


def test_runs_on_other_samples_cannot_be_compared_whatever_their_files_are_called(write_run):
    contents = [None, "a", "a", None, "b"]  # former versions did not write them
    runs = [
        read_run(write_run(f"seed_{seed}", {"stored": [[1]]}, seed=seed, content=content))
        for seed, content in enumerate(contents)
    ]
    check_same_data(runs[:4])
    line = f"data: the files held other samples for '{runs[2].folder}' than for '{runs[4].folder}'; compare runs on the"
    with pytest.raises(PflError, match=re.escape(line)):
        check_same_data(runs)


def test_a_setting_that_was_another_before_the_run_resumed_has_both_values(write_run):
    before = {"model.local.lr": "0.3 until round 10", "model.local.head_lr": "0.2 until round 20"}
    runs = [read_run(write_run(name, {"stored": [[1]]}, **at)) for name, at in (("a", {}), ("b", {"changed": before}))]
    assert [run.settings["model.local.lr"] for run in runs] == [0.1, "0.3 until round 10, then 0.1"]
    assert runs[1].settings["model.local.head_lr"] == "0.2 until round 20, then None"
    names = [curve.name for curve in curves_of(runs)]
    both = "lr=0.3 until round 10, then 0.1, head_lr=0.2 until round 20, then None"
    assert names == ["FedRep, lr=0.1", f"FedRep, {both}"]
    assert set(results([run.folder for run in runs])["model.local.lr"]) == {0.1, "0.3 until round 10, then 0.1"}


def test_the_place_of_the_data_and_who_takes_part_may_differ(write_run):
    other = {"root": "/there", "communication_time": 9, "participation": {"class_path": "P", "init_args": {"pool": 5}}}
    runs = [read_run(write_run(name, {"stored": [[1]]}, data=data)) for name, data in (("one", None), ("two", other))]
    check_same_data(runs)
    assert np.array_equal(runs[0].rounds, runs[1].rounds)


def with_attackers(folder, attackers):
    """A run some of whose clients are scored apart."""
    table = pd.read_csv(folder / CLIENTS)
    attacks = table["client"].isin(attackers)
    table.assign(split=table["split"].mask(attacks, "attackers")).to_csv(folder / CLIENTS, index=False)
    return read_run(folder)


def test_runs_with_other_attackers_score_other_clients_and_cannot_be_compared(write_run):
    scores = {"stored": [[0.5, 0.5, 0.5, 0.5]]}
    clean = read_run(write_run("clean", scores))
    attacked, again = (with_attackers(write_run(name, scores), [3]) for name in ("attacked", "again"))
    other = with_attackers(write_run("other", scores), [1, 2])
    for runs in ([clean, attacked], [attacked, again, clean], [attacked, other]):
        line = f"runs: '{runs[-1].folder}' scores {len(runs[-1].tested)} clients and '{runs[0].folder}' "
        with pytest.raises(PflError, match=re.escape(f"{line}{len(runs[0].tested)}, as attackers are left out; ")):
            check_same_data(runs)
    check_same_data([attacked, again])
    check_same_data([attacked, with_attackers(write_run("undefined", {"stored": [[0.5, 0.5]]}), [3])])


def test_the_final_table_has_columns_for_attackers_and_backdoors_where_there_are_some(write_run):
    folders = [write_run(name, {"stored": [[0.5, 0.75]]}, model={"local": {"lr": lr}}) for name, lr in LRS.items()]
    table = pd.read_csv(folders[1] / CLIENTS)
    marked = table[table["split"] == "test"].assign(split="backdoor", correct=[3, 1], samples=4)
    pd.concat([table, marked]).to_csv(folders[1] / CLIENTS, index=False)
    rows = final_table(curves_of([*map(read_run, folders)])).rows
    assert [row.get("backdoor") for row in rows] == pytest.approx([float("nan"), 0.5], nan_ok=True)
    assert "attackers" not in rows[0]
    plain = final_table(curves_of([read_run(folders[0])]))
    assert "backdoor" not in plain.rows[0]
