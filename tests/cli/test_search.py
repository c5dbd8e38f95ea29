"""Searches whose runs are not run: a trial's score is a function of its settings."""

import errno
import math
import re
import sys
from contextlib import suppress
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from fakes.tables import read_table
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend

from pfl_lightning.callbacks import RoundCheckpoint
from pfl_lightning.cli import main, planning, search
from pfl_lightning.cli.execution import Sweep
from pfl_lightning.cli.planning import Plan, values_by_key
from pfl_lightning.cli.search import Search, space_of, word
from pfl_lightning.errors import PflError
from pfl_lightning.runs.folders import RunFolder

SPACE = ["model.local.lr=log:0.001..1", "model.local.epochs=1,2"]
BEST = -1.5  # decimal logarithm of the best rate


@pytest.fixture(autouse=True)
def in_a_folder_with_a_method(in_an_empty_folder):
    Path("fedavg.yaml").write_text("model: {class_path: FedAvg}")


class Pretended:
    """Executes no run; from one on it is asked to stop, or they fail; rates above some diverge.

    All of this happens once the runs have begun, if they do.
    """

    def __init__(self, stops_at=math.inf, fails_at=math.inf, highest=1.0, begins=True):
        self.signal = 0
        self.refused = set()
        self.fails_at = fails_at
        self.stops_at = stops_at
        self.highest = highest
        self.begins = begins
        self.names = []

    def execute_all(self, runs):
        return [self.execute(run) for run in runs]

    def execute(self, run):
        self.signal = 2 * (len(self.names) >= self.stops_at)
        fails = len(self.names) >= self.fails_at
        self.names.append(run.name)
        if self.begins:
            (run.folder / "FedAvg-Digits" / "version_0").mkdir(parents=True, exist_ok=True)
        if self.signal or fails:
            return None
        if run.settings["model"]["init_args"]["local"]["lr"] > self.highest:
            self.refused.add(run.folder)
            return None
        return run.folder


def few_settings(words, root="data"):
    """The few settings that these tests read, quickly."""
    parts = {"model": {}, "trainer": {"default_root_dir": "runs"}}
    for option in words:
        section, dot, rest = option.removeprefix("--").partition(".")
        if dot and section in parts:
            key, _, value = rest.partition("=")
            *outer, last = key.split(".")
            options = reduce(lambda inner, name: inner.setdefault(name, {}), outer, parts[section])
            options[last] = yaml.safe_load(value)
    return {
        "seed_everything": 0,
        "trainer": parts["trainer"],
        "model": {"class_path": "FedAvg", "init_args": parts["model"]},
        "data": {"class_path": "Digits", "init_args": {"root": root}},
        "checkpoint": {"monitor": None},
    }


@pytest.fixture
def scores(monkeypatch):
    monkeypatch.setattr(planning, "settings_of", few_settings)

    def score(run):
        local = run.settings["model"]["init_args"]["local"]
        off = math.log10(local["lr"]) - BEST
        return 1 - off**2 - 0.1 * (local["epochs"] == 1) + 0.001 * run.settings["seed_everything"]

    monkeypatch.setattr(search, "score_of", score)


def planned(space=SPACE, seeds=(1, 2), passed=(), out="sweep"):
    plan = Plan(["fedavg.yaml"], [*seeds], [*passed], Path(out))
    return Search(plan, "fedavg.yaml", space_of(values_by_key(space)))


def searched(trials, sweep=None, at_once=1, **options):
    """Whether a search is complete, and its table; a search that goes on leaves no interrupted trial there."""
    search = planned(**options)
    is_complete = search.run(trials, at_once, sweep or Pretended())
    rows = read_table(search.folder / "trials.csv")
    if is_complete:
        assert [row["number"] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
        assert {row["state"] for row in rows} <= {"COMPLETE", "PRUNED"}
    return is_complete, [row for row in rows if row["state"] != "FAIL"]


def tried(rows):
    return [(row["model.local.lr"], row["model.local.epochs"]) for row in rows]


@pytest.mark.slow
def test_the_best_settings_are_found_and_written(capsys, scores):
    is_complete, rows = searched(25)
    best = max(rows, key=lambda row: float(row["value"]))
    assert is_complete
    assert len(rows) == 25
    assert [*best][:3] == ["number", "state", "value"]
    assert abs(math.log10(float(best["model.local.lr"])) - BEST) < 0.15
    assert best["model.local.epochs"] == "2"
    for row in rows:
        assert float(row["value"]) == pytest.approx((float(row["seed_1"]) + float(row["seed_2"])) / 2)
    settings = yaml.safe_load(Path("sweep/search/fedavg/best.yaml").read_text())
    assert settings["model"]["init_args"] == {"local": {"lr": float(best["model.local.lr"]), "epochs": 2}}
    assert not {"seed_everything", "default_root_dir"} & {*settings, *settings["trainer"]}
    line = capsys.readouterr().out.splitlines()[-1]
    assert f"lr={best['model.local.lr']}, epochs=2 with a validation score of {float(best['value']):.4g}, trial" in line
    assert f"trial {best['number']} of sweep/search/fedavg/trials.csv" in line
    assert "pfl fit --config sweep/search/fedavg/best.yaml" in line


@pytest.mark.parametrize("end", ["stops_at", "fails_at"])  # by a signal, or as on a full disk
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(end, scores, capsys):
    _, straight = searched(12, out="straight")
    is_complete, stopped = searched(12, Pretended(**{end: 9}), out="resumed")  # in the fifth trial, between its seeds
    assert not is_complete
    assert {row["state"] for row in stopped} == {"COMPLETE"}
    _, resumed = searched(12, sweep := Pretended(), out="resumed")
    assert tried(resumed) == tried(straight)
    assert [row["seed_1"] for row in resumed] == [row["seed_1"] for row in straight]
    assert len(sweep.names) == 2 * 8
    assert sweep.names[0].startswith("trial 5/12, fedavg, lr=")
    capsys.readouterr()
    assert searched(12, again := Pretended(), out="resumed")[1] == resumed
    assert not again.names
    assert capsys.readouterr().out.startswith("Best so far: lr=")
    assert searched(13, out="resumed")[1][:12] == resumed


def test_choices_alone_are_each_tried_once(scores):
    space = ["model.local.lr=0.01,0.03,0.1", "model.local.epochs=1,2"]
    combinations = tried(searched(20, sweep := Pretended(), space=space)[1])
    assert sorted(combinations) == [(lr, epochs) for lr in ("0.01", "0.03", "0.1") for epochs in "12"]
    assert combinations != sorted(combinations)
    assert len(sweep.names) == 2 * 6
    assert sweep.names[0].startswith("trial 1/6, fedavg, lr=")
    searched(2, space=space, out="resumed")
    searched(5, Pretended(stops_at=2), at_once=2, space=space, out="resumed")  # in the second of two trials at once
    _, resumed = searched(5, again := Pretended(), at_once=2, space=space, out="resumed")
    assert tried(resumed) == combinations[:5]
    assert len(again.names) == 2 * 3


def test_a_search_that_was_killed_while_it_wrote_goes_on_as_if_it_had_not_been(scores):
    space = ["model.local.lr=0.01,0.03,0.1", "model.local.epochs=1,2"]
    combinations = tried(searched(6, space=space, out="straight")[1])
    searched(2, space=space, out="resumed")
    killed = planned(space=space, out="resumed")
    killed.ask(2)
    killed.study.enqueue_trial(killed.combinations[3])
    journal = Path("resumed/search/fedavg/study.log")
    with journal.open("ab") as file:
        file.write(b'{"op_code":')
    Path(f"{journal}.lock").symlink_to(journal)  # as Optuna locks it: a relative link, which leads nowhere
    _, resumed = searched(6, space=space, out="resumed")
    assert tried(resumed) == combinations
    assert {row["state"] for row in resumed} == {"COMPLETE"}


def test_a_journal_without_room_is_named(scores, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    search = planned()
    search.run(1, 1, Pretended())
    monkeypatch.setattr(JournalFileBackend, "append_logs", fail)
    with pytest.raises(OSError, match=r"No space left on device: 'sweep/search/fedavg/study\.log'"):
        search.run(2, 1, Pretended())


def test_another_search_in_the_same_folder_at_the_same_time_is_refused(scores):
    search = planned()
    search.folder.mkdir(parents=True)
    with RunFolder(search.folder), pytest.raises(PflError, match=r"^'sweep/search/fedavg' is in use by process"):
        search.run(1, 1, Pretended())


@pytest.mark.slow
def test_clients_for_validation_are_enough_for_a_search():
    search = planned(passed=["--data.val_fraction=0", "--data.val_clients=0.2", "--model.eval_epochs=0"])
    assert search.common["data"]["init_args"]["val_clients"] == 0.2


def test_another_first_seed_tries_other_settings(scores):
    assert tried(searched(3, out="1", seeds=[1])[1]) != tried(searched(3, out="2", seeds=[2])[1])


@pytest.mark.slow
def test_a_trial_with_a_failed_run_has_no_score_and_the_search_avoids_its_like(scores):
    is_complete, rows = searched(30, Pretended(highest=0.01))
    failed = [row for row in rows if not row["value"]]
    assert is_complete
    assert failed
    assert failed == [row for row in rows if float(row["model.local.lr"]) > 0.01]
    late = rows[20:]
    assert sum(row in failed for row in late) < len(late) / 2


def test_the_end_of_a_search_is_the_command_that_trains_with_what_it_found(scores, capsys, monkeypatch):
    monkeypatch.setattr(Sweep, "execute", lambda _, run: run.folder)
    monkeypatch.setattr(search, "has_begun", lambda folder: True)
    names = ["fedavg", "FedRep"]
    space = ["--search=lr=0.01,0.03", "--search=epochs=1,2"]
    main(["sweep", "--methods", "fedavg.yaml", "FedRep", "--seeds", "1", "4", *space, "--out=tuning"])
    *best, command = capsys.readouterr().out.splitlines()[-3:]
    assert best == [f"Best of {name}: lr=0.03, epochs=2 with a validation score of 1.002" for name in names]
    assert command == (
        "Train with other seeds: pfl sweep --methods tuning/search/*/best.yaml --seeds 5 6 7 --out tuning/best"
    )
    runs = []
    monkeypatch.setattr(Sweep, "execute", lambda _, run: runs.append(run) or run.folder)
    files = sorted(map(str, Path("tuning/search").glob("*/best.yaml")))
    main(["sweep", "--methods", *files, "--seeds", "5", "--out=tuning/best"])
    assert [run.folder for run in runs] == [Path(f"tuning/best/{name}/seed_5") for name in sorted(names)]
    assert {run.args[run.args.index("--config") + 1] for run in runs} == {*files}


def test_a_search_without_a_score_is_not_done_and_says_so(scores, capsys):
    for _ in range(2):
        assert not searched(2, Pretended(highest=0.0))[0]
        line = "No trial of sweep/search/fedavg/trials.csv has a score so far"
        assert capsys.readouterr().out.splitlines()[-1] == line
    assert not Path("sweep/search/fedavg/best.yaml").exists()


def test_a_search_whose_first_runs_do_not_begin_ends_and_can_be_started_again(scores):
    assert searched(3, sweep := Pretended(highest=0.0, begins=False), at_once=2) == (False, [])
    assert len(sweep.names) == 2 * 2
    is_complete, rows = searched(3)
    assert is_complete
    assert tried(rows) == tried(searched(3, out="new")[1])


def test_several_trials_can_run_at_once(scores):
    is_complete, rows = searched(5, sweep := Pretended(), at_once=2)
    assert is_complete
    assert [row["number"] for row in rows] == list("12345")
    assert len(sweep.names) == 10


@pytest.mark.parametrize(
    ("setting", "distribution"),
    [
        ("a=1..5", IntDistribution(1, 5)),
        ("a=log:1..1000", IntDistribution(1, 1000, log=True)),
        ("a=0.0..1", FloatDistribution(0.0, 1.0)),
        ("a=log:1e-4..1", FloatDistribution(1e-4, 1.0, log=True)),
        ("a=1,2,null", CategoricalDistribution(["1", "2", "null"])),
        ("a=MLP,LeNet5", CategoricalDistribution(["MLP", "LeNet5"])),
        ("a=../one,../two", CategoricalDistribution(["../one", "../two"])),
    ],
)
def test_ranges_and_choices(setting, distribution):
    assert space_of(values_by_key([setting])) == {"a": distribution}


def test_drawn_numbers_are_short_and_within_their_range():
    tight = FloatDistribution(0.12345678, 0.12345679)
    assert tight.low <= float(word(0.123456785, tight)) <= tight.high
    assert word(1.23456789e-7, FloatDistribution(1e-9, 1.0)) == "1.235e-07"
    assert word(3, IntDistribution(1, 5)) == "3"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "model.local.lr=1..0.1",
            "search: model.local.lr=1..0.1 is not possible; allowed: low..high, or log:low..high",
        ),
        ("model.local.lr=log:0..1", "search: model.local.lr=log:0..1 is not possible"),
        ("model.local.lr=0.1..", "search: model.local.lr=0.1.. is not possible"),
        ("model.local.epochs=1..5,10", "search: model.local.epochs=1..5,10 is not possible; allowed: low..high"),
        ("model.local.lr=a..b", "search: model.local.lr=a..b is not possible"),
        ("model.local.lr=.nan..1", "search: model.local.lr=.nan..1 is not possible"),
        ("model.local.lr=1...inf", "search: model.local.lr=1...inf is not possible"),
        ("model.local.lr=lin:0.1..1", "search: model.local.lr=lin:0.1..1 is not possible"),
        (
            "model.local.lr=0.1",
            "search: model.local.lr=0.1 is a single value, which leaves nothing to search; allowed: several",
        ),
        ("model.local.lr=0.1..0.1", "search: model.local.lr=0.1..0.1 is a single value"),
        ("model.local.lr", "search: model.local.lr is not possible; allowed: a setting and its values"),
        (
            "model.local.lr=0.1..1 --search model.local.lr=1,2",
            "search: model.local.lr=1,2: model.local.lr, or one of its values, is listed",
        ),
        ("model.local.lr=-1..1", "model.local.lr: -1 is not possible"),
        ("model.local.epochs=0.5..1", "model.local.epochs: 0.5 is not possible"),
        ("model.lrr=0.1..1", "model.lrr: FedAvg has no such option"),
        ("seed_everything=1..9", "--seed_everything is not possible, the sweep sets it"),
        ("config=a,b", "search: config is not possible"),
        ("model.local.lr=0.1..1 --vary model.local.epochs=1,2", "vary: leave it out with search"),
        ("model.local.lr=0.1..1 --trials 0", "trials: 0 is not possible"),
        (
            "model.local.lr=0.1..1 -- --checkpoint.monitor=test/global/accuracy/mean",
            "checkpoint.monitor must start with val/ in a search, got test/global/accuracy/mean",
        ),
        ("model.local.lr=0.1..1 -- --data.val_fraction=0", "data.val_fraction must be more than 0 in a search, got 0"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_written(words, line, refused):
    code, error = refused("sweep", "--methods=fedavg.yaml", "--seeds=1", "--search", *words.split())
    assert code == 2
    assert error.startswith(line)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"seeds": [1]}, "seeds: [1, 2] in 'sweep/search/fedavg', [1] now"),
        ({"space": ["model.local.lr=log:0.01..1", SPACE[1]]}, "search.model.local.lr: FloatDistribution(high=1.0"),
        ({"passed": ["--trainer.max_steps=7"]}, "trainer.max_steps: None in 'sweep/search/fedavg', 7 now"),
        ({"root": "other"}, "data.root: data in 'sweep/search/fedavg', other now"),  # in a file
    ],
)
def test_another_search_in_the_same_folder_is_refused_and_its_table_stays(changes, line, scores, monkeypatch):
    searched(1)
    table = Path("sweep/search/fedavg/trials.csv").read_text()
    root = changes.pop("root", "data")
    monkeypatch.setattr(planning, "settings_of", lambda words: few_settings(words, root))
    with pytest.raises(PflError, match=f"^{re.escape(line)}.*; keep the old value, or choose another --out$"):
        searched(2, **changes)
    assert Path("sweep/search/fedavg/trials.csv").read_text() == table


def test_a_missing_library_gets_a_line(monkeypatch, refused):
    monkeypatch.delitem(sys.modules, "pfl_lightning.cli.search")
    monkeypatch.setitem(sys.modules, "optuna", None)
    _, line = refused("sweep", "--methods=fedavg.yaml", "--seeds=1", "--search=model.local.lr=1,2")
    assert line.startswith('search: needs uv pip install "pfl_lightning[search]"')


def test_the_score_is_that_of_the_best_checkpoint():
    state = {"best_score": 0.75, "best_round": 3}
    content = {"callbacks": {RoundCheckpoint().state_key: state}, "monitor": "val/global/accuracy/mean"}
    finished = SimpleNamespace(resume=lambda: SimpleNamespace(content=content))
    assert search.score_of(finished) == 0.75
    state["best_score"] = -math.inf
    line = "^search: val/global/accuracy/mean was not logged; allowed: data with validation"
    with pytest.raises(PflError, match=line):
        search.score_of(finished)


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "at_once"), [(1, 1), (4, 2), (5, 2)])
def test_as_many_trials_run_at_once_as_have_room_for_all_seeds(jobs, at_once, monkeypatch):
    calls = []
    monkeypatch.setattr(search.Search, "run", lambda _, trials, at_once, sweep: calls.append(at_once))
    with suppress(SystemExit):  # as there is no result
        main(
            ["sweep", "--methods", "fedavg.yaml", "--seeds", "1", "2", f"--jobs={jobs}", "--search=model.local.lr=1,2"]
        )
    assert calls == [at_once]
