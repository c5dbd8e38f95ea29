import numpy as np
import pytest
from fakes.curves import curves

from pfl_lightning.errors import PflError
from pfl_lightning.report import time_figure
from pfl_lightning.report.compare_curves import converged_round, without_doubling
from pfl_lightning.report.compare_tables import final_table, time_table
from pfl_lightning.report.drawing import styles_of

ONE = {"finetuned": [[0.5]], "stored": [[0.5]]}


def seconds_to(curve, score, communication_time):
    """Simulated seconds until each seed first has a score."""
    _, seconds = curve.reach(score, curve.times(communication_time))
    return seconds.tolist()


def test_seeds_are_one_curve_up_to_their_last_common_evaluation(write_run):
    first = write_run("first", {"finetuned": [[0.1], [0.5], [0.7]]}, compute=[0, 1, 2], seed=2)
    second = write_run("second", {"finetuned": [[0.3], [0.4]]}, compute=[0, 3], seed=1)
    (curve,) = curves(first, second)
    assert [run.seed for run in curve.runs] == [1, 2]
    assert curve.rounds.tolist() == [0, 10]
    assert curve.means.tolist() == [[0.3, 0.4], [0.1, 0.5]]
    assert [scores.tolist() for scores in curve.final("score")] == [[0.4], [0.5]]


def test_the_communication_time_is_that_of_the_comparison(write_run):
    # stages of 1, 2, 4 and 5 of the clients with times .5, 1, 2, 3 and 4: the slowest one counts
    compute = np.cumsum([0, 0.5, 0.5, 1, 1, 3, 3, 4, 4]).tolist()
    (curve,) = curves(write_run("run", {"stored": [[0.1 * i] for i in range(9)]}, compute=compute))
    assert curve.times(0).tolist() == [[0, 0.5, 1, 2, 3, 6, 9, 13, 17]]
    # ten rounds between evaluations, each with one communication
    assert curve.times(2).tolist() == [[0, 20.5, 41, 62, 83, 106, 129, 153, 177]]


def test_without_rounds_the_communication_time_is_that_of_the_run(write_run, log):
    participation = {"class_path": "pfl_lightning.system.Asynchronous", "init_args": {}}
    runs = []
    for time, seconds in ((0.0, [0, 1, 2]), (5.0, [0, 6.5, 13])):
        data = {"participation": participation, "communication_time": time}
        folder = write_run(f"{time} s", {"stored": [[0.1], [0.2], [0.3]]}, data=data, compute=[0, 1, 2])
        runs.append(log(folder, "time/total", dict(zip((0, 10, 20), seconds, strict=True))))
    without, late = curves(*runs)
    assert without.times(0).tolist() == [[0, 1, 2]]
    assert late.times(5).tolist() == [[0, 6.5, 13]]
    assert np.isnan([without.times(5), late.times(0)]).all()
    assert (without.label, late.label) == ("FedRep, communication_time=0.0", "FedRep, communication_time=5.0")
    assert seconds_to(late, 0.2, 5) == [6.5]
    table = time_table([late], [0.2], [0, 5])
    assert [row["reached"] for row in table.rows] == [1, 1]
    assert "| unknown " in table.text
    time_figure([without, late], [0, 5]).draw_without_rendering()


def test_the_seconds_to_a_score_are_those_of_the_first_evaluation_that_has_it(write_run):
    almost = float(np.float32(0.7))  # 0.699999988, as metrics.csv has it
    dips = write_run("dips", {"stored": [[0.1], [almost], [0.6], [0.9]]}, compute=[0, 2, 3, 4], seed=1)
    late = write_run("late", {"stored": [[0.1], [0.2], [0.3], [0.7]]}, compute=[0, 2, 3, 5], seed=2)
    (curve,) = curves(dips, late)
    assert seconds_to(curve, 0.7, 0) == [2, 5]
    assert seconds_to(curve, 0.7, 10) == [102, 305]
    assert np.isnan(seconds_to(curve, 0.8, 0)).tolist() == [False, True]
    assert seconds_to(curve, np.array([[0.8], [0.2]]), 0) == [4, 2]


def test_a_loss_is_reached_from_above(write_run):
    (curve,) = curves(write_run("run", {"stored": [[3.0], [2.0], [1.0]]}, score_name="loss", compute=[0, 1, 2]))
    assert seconds_to(curve, 2.0, 0) == [1]


@pytest.mark.parametrize(
    ("method", "models", "plain", "doubled"),
    [
        ("FedRep", ["finetuned", "stored"], ["FedRep"], ["FedRep-SRPFL"]),
        ("LGFedAvg", ["finetuned", "stored"], ["LG-FedAvg"], ["LG-SRPFL"]),
        ("FedAvg", ["global", "finetuned"], ["FedAvg", "FedAvg-FT"], ["FLANP", "FLANP-FT"]),
        ("HFMAML", ["finetuned", "global"], ["HF-MAML"], ["HF-MAML + doubling"]),
        ("Local", ["stored"], ["Local"], ["Local + doubling"]),
    ],
)
def test_curves_are_named_as_in_the_papers(write_run, doubling, method, models, plain, doubled):
    scores = {model: [[0.5]] for model in models}
    with_doubling = write_run("doubled", scores, method, callbacks=[doubling])
    found = curves(with_doubling, write_run("plain", scores, method))
    assert [curve.label for curve in found if not curve.doubled] == plain
    assert [curve.label for curve in found if curve.doubled] == doubled
    # variants stand side by side, share a family, and know each other
    assert [curve.family for curve in found] == [name for name in plain for _ in range(2)]
    assert [without_doubling(curve, found) for curve in found[1::2]] == found[::2]


def test_another_evaluated_model_is_named(write_run):
    folders = write_run("one", ONE), write_run("two", {"global": [[0.5]], "finetuned": [[0.5]]}, "FedAvg")
    assert [curve.label for curve in curves(*folders, models=["stored", "global"])] == ["FedRep (stored)", "FedAvg"]


def test_curves_of_one_name_are_told_apart_by_the_settings_that_differ(write_run):
    small, large = ({"class_path": "pfl_lightning.models.MLP", "init_args": {"hidden": [n]}} for n in (4, 8))
    other = {"class_path": "my.Net", "init_args": {"width": 3}}
    runs = [
        write_run("one", ONE, model={"network": small}),
        write_run("two", ONE, model={"network": other, "local": {"lr": 0.2}}),
        write_run("three", ONE, "Local"),
    ]
    labels = [curve.label for curve in curves(*runs)]
    assert labels == ["FedRep, lr=0.1, network=MLP", "FedRep, lr=0.2, network=my.Net", "Local"]
    runs[1] = write_run("four", ONE, model={"network": large})
    assert [curve.label for curve in curves(*runs)][:2] == ["FedRep, network.hidden=[4]", "FedRep, network.hidden=[8]"]
    # three networks, two of one class: the class does not tell them apart
    runs.append(write_run("five", ONE, model={"network": other}))
    assert len({curve.label for curve in curves(*runs)}) == 4


def test_runs_that_have_diverged_are_marked_and_keep_their_look(write_run, log):
    """The first cell of a loss is empty, as none was logged."""
    folders = [write_run(f"{seed}", ONE, "FedAvg", seed=seed) for seed in (1, 2)]
    other = write_run("other", ONE, "FedAvg", model={"local": {"lr": 9.0}})
    log(folders[1], "train/loss", {0: "", 5: "1.0", 10: "nan"})
    log(other, "train/loss", {5: "inf"})
    (finetuned, *_), (diverged, *_) = (curves(*runs, models=["finetuned"]) for runs in (folders, [other]))
    assert finetuned.label.endswith(" (1 of 2 seeds diverged)")
    assert diverged.label.endswith(" (diverged)")
    assert styles_of([finetuned]) == styles_of(curves(folders[0], models=["finetuned"]))
    assert [row["method"] for row in final_table([diverged]).rows] == [diverged.label]
    both = curves(folders[0], other, models=["stored"])
    assert [curve.label for curve in both] == ["FedAvg (stored), lr=0.1", "FedAvg (stored), lr=9.0 (diverged)"]


def test_runs_that_make_no_curves_are_refused(write_run):
    one, same = write_run("one", ONE), write_run("same", ONE)
    with pytest.raises(PflError, match=f"seed_everything: 1 in '{one}' and '{same}' with the same settings"):
        curves(one, same)
    with pytest.raises(PflError, match=f"models: '{one}' has none of global; allowed: finetuned, stored"):
        curves(one, models=["global"])


def plain(losses, window, improvement, patience):
    """The definition, word by word."""
    average = {k: sum(losses[k - window : k]) / window for k in range(window, len(losses) + 1)}
    for k in range(window + patience, len(losses) + 1):
        last = range(k - patience + 1, k + 1)
        if all(average[r] >= (1 - improvement) * average[r - 1] for r in last):
            return k
    return None


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("window", "improvement", "patience"), [(5, 1e-3, 10), (1, 0.02, 3), (3, 0.1, 1)])
def test_the_round_is_that_of_the_definition(seed, window, improvement, patience):
    random = np.random.default_rng(seed)
    losses = (1 + 4 * 0.8 ** np.arange(60) + 0.001 * random.normal(size=60)).tolist()
    assert converged_round(losses, window, improvement, patience) == plain(losses, window, improvement, patience)


def test_a_flat_loss_has_converged_as_soon_as_it_can_be_known():
    assert converged_round([1.0] * 14) is None
    assert converged_round([1.0] * 15) == 15
    assert converged_round([0.0] * 40) == 15


def test_a_geometric_loss_converges_once_its_gain_over_the_limit_is_small():
    # 1 + 0.5^k: averages over one round gain 0.5^k / (1 + 0.5^(k - 1)), at most 1 % from k = 7 on
    losses = [1 + 0.5**k for k in range(1, 30)]
    assert converged_round(losses, window=1, improvement=0.01, patience=1) == 7
    assert converged_round(losses, window=1, improvement=0.01, patience=4) == 10


def test_a_loss_that_falls_by_more_each_round_or_is_not_finite_never_converges():
    assert converged_round([0.99**k for k in range(500)]) is None
    assert converged_round([0.9995**k for k in range(500)]) == 15
    assert converged_round([float("nan")] * 50) is None
    assert converged_round([float("inf")] * 50) is None
    assert converged_round([*(0.99**k for k in range(20)), *[float("inf")] * 30]) is None
