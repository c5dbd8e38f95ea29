"""Searches whose runs are not run: a trial's score is a function of its settings."""

import csv
import math
import sys
from pathlib import Path

import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from pfl_lightning.callbacks import RoundCheckpoint
from pfl_lightning.cli import main, search
from pfl_lightning.cli.planning import PlannedRun
from pfl_lightning.cli.search import planned_searches, space_of, word
from pfl_lightning.errors import PflError

SPACE = ["model.lr=log:0.001..1", "model.epochs=1,2"]
BEST = -1.5  # decimal logarithm of the best rate


@pytest.fixture(autouse=True)
def in_a_folder_with_a_method(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fedavg.yaml").write_text("model: {class_path: FedAvg}")


class Pretended:
    """Executes no run; from one on it is asked to stop, and rates above some fail, once their runs have begun."""

    def __init__(self, stops_at=math.inf, highest=1.0, begins=True):
        self.signal, self.stops_at, self.highest, self.begins, self.names = 0, stops_at, highest, begins, []

    def execute_all(self, runs):
        folders = []
        for run in runs:
            self.signal = 2 * (len(self.names) >= self.stops_at)
            self.names.append(run.name)
            if self.begins:
                (run.folder / "FedAvg-Digits" / "version_0").mkdir(parents=True, exist_ok=True)
            failed = self.signal or run.settings["model"]["init_args"]["lr"] > self.highest
            folders.append(None if failed else run.folder)
        return folders


def quickly_planned(numbers, method, values, seeds, passed, out):
    """Runs with the few settings that these tests read."""
    return [quick(number, method, values, seed, passed) for number, seed in zip(numbers, seeds, strict=True)]


def quick(number, method, values, seed, passed):
    model = {key.partition(".")[2]: yaml.safe_load(value) for key, value in values.items()}
    options = dict(word.removeprefix("--trainer.").split("=") for word in passed)
    settings = {
        "seed_everything": seed,
        "trainer": {"max_steps": 100, "default_root_dir": "runs", "enable_progress_bar": False, **options},
        "model": {"class_path": "FedAvg", "init_args": model},
        "data": {"class_path": "Digits", "init_args": {"root": "data"}},
        "checkpoint": {"monitor": None},
    }
    called = ", ".join([Path(method).stem, *(f"{key}={value}" for key, value in model.items()), f"seed {seed}"])
    return PlannedRun(f"{number} {called}", Path(called), [], settings)


@pytest.fixture
def scores(monkeypatch):
    monkeypatch.setattr(search, "planned_runs", quickly_planned)

    def score(run):
        model = run.settings["model"]["init_args"]
        off = math.log10(model["lr"]) - BEST
        return 1 - off**2 - 0.1 * (model["epochs"] == 1) + 0.001 * run.settings["seed_everything"]

    monkeypatch.setattr(search, "score_of", score)


def found(trials, sweep=None, at_once=1, out="sweep", seeds=(1, 2), passed=(), space=SPACE):
    """Whether a search is complete, and its table without interrupted trials."""
    (each,) = planned_searches(["fedavg.yaml"], space, seeds, passed, Path(out))
    done = each.run(trials, at_once, sweep or Pretended())
    with (each.folder / "trials.csv").open(newline="") as file:
        return done, [row for row in csv.DictReader(file) if row["state"] != "FAIL"]


@pytest.mark.slow
def test_the_best_settings_are_found_and_written(capsys, scores):
    done, rows = found(25)
    best = max(rows, key=lambda row: float(row["value"]))
    assert done
    assert len(rows) == 25
    assert [*best][:3] == ["number", "state", "value"]
    assert abs(math.log10(float(best["model.lr"])) - BEST) < 0.15
    assert best["model.epochs"] == "2"
    for row in rows:
        assert float(row["value"]) == pytest.approx((float(row["seed_1"]) + float(row["seed_2"])) / 2)
    settings = yaml.safe_load(Path("sweep/search/fedavg/best.yaml").read_text())
    assert settings["model"]["init_args"]["lr"] == float(best["model.lr"])
    assert settings["model"]["init_args"]["epochs"] == 2
    assert not {"seed_everything", "default_root_dir"} & {*settings, *settings["trainer"]}
    told = capsys.readouterr().out.splitlines()[-1]
    assert f"trial {best['number']} of sweep/search/fedavg/trials.csv" in told
    assert "pfl fit --config sweep/search/fedavg/best.yaml" in told


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(scores, capsys):
    tried = [[row["model.lr"], row["model.epochs"], row["seed_1"]] for row in found(12, out="straight")[1]]
    done, _ = found(12, Pretended(stops_at=9), out="resumed")  # in the fifth trial, between its two seeds
    assert not done
    sweep = Pretended()
    _, resumed = found(12, sweep, out="resumed")
    assert [[row["model.lr"], row["model.epochs"], row["seed_1"]] for row in resumed] == tried
    assert len(sweep.names) == 2 * 8
    assert sweep.names[0].startswith("trial 5/12, fedavg, lr=")
    capsys.readouterr()
    assert found(12, again := Pretended(), out="resumed")[1] == resumed
    assert not again.names
    assert capsys.readouterr().out.startswith("Best so far: trial ")
    assert found(13, out="resumed")[1][:12] == resumed


def test_choices_alone_are_each_tried_once(scores):
    space = ["model.lr=0.01,0.03,0.1", "model.epochs=1,2"]
    sweep = Pretended()
    tried = [(row["model.lr"], row["model.epochs"]) for row in found(20, sweep, space=space)[1]]
    assert sorted(tried) == [(lr, epochs) for lr in ("0.01", "0.03", "0.1") for epochs in "12"]
    assert tried != sorted(tried)
    assert len(sweep.names) == 2 * 6
    assert sweep.names[0].startswith("trial 1/6, fedavg, lr=")
    found(2, space=space, out="resumed")
    resumed = found(5, again := Pretended(), at_once=2, space=space, out="resumed")[1]
    assert [(row["model.lr"], row["model.epochs"]) for row in resumed] == tried[:5]
    assert len(again.names) == 2 * 3


@pytest.mark.slow
def test_clients_for_validation_are_enough_for_a_search():
    passed = ["--data.val_fraction=0", "--data.val_clients=0.2", "--model.eval_epochs=0"]
    (search,) = planned_searches(["fedavg.yaml"], SPACE, [1], passed, Path("sweep"))
    assert search.common["data"]["init_args"]["val_clients"] == 0.2


def test_another_first_seed_tries_other_settings(scores):
    one, other = (found(3, out=f"of-{seed}", seeds=[seed])[1] for seed in (1, 2))
    assert [row["model.lr"] for row in one] != [row["model.lr"] for row in other]


@pytest.mark.slow
def test_a_trial_with_a_failed_run_has_no_score_and_the_search_avoids_its_like(scores):
    done, rows = found(30, Pretended(highest=0.01))
    failed = [row for row in rows if not row["value"]]
    assert done
    assert failed
    assert {row["model.lr"] for row in failed} == {row["model.lr"] for row in rows if float(row["model.lr"]) > 0.01}
    late = rows[20:]
    assert sum(row in failed for row in late) < len(late) / 2


def test_a_search_without_a_score_is_not_done(scores):
    (each,) = planned_searches(["fedavg.yaml"], SPACE, [1], [], Path("sweep"))
    assert not each.run(2, 1, Pretended(highest=0.0))
    assert not Path("sweep/search/fedavg/best.yaml").exists()


def test_a_search_whose_first_runs_do_not_begin_ends_and_can_be_started_again(scores):
    done, rows = found(3, sweep := Pretended(highest=0.0, begins=False), at_once=2, seeds=[1])
    assert not done
    assert not rows
    assert len(sweep.names) == 2
    again = found(3, seeds=[1])
    assert again[0]
    assert [row["model.lr"] for row in again[1]] == [row["model.lr"] for row in found(3, out="new", seeds=[1])[1]]


def test_several_trials_can_run_at_once(scores):
    sweep = Pretended()
    done, rows = found(5, sweep, at_once=2)
    assert done
    assert [row["number"] for row in rows] == list("01234")
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
    assert space_of([setting]) == {"a": distribution}


def test_drawn_numbers_are_short_and_within_their_range():
    tight = FloatDistribution(0.12345678, 0.12345679)
    assert tight.low <= float(word(0.123456785, tight)) <= tight.high
    assert word(1.23456789e-7, FloatDistribution(1e-9, 1.0)) == "1.235e-07"
    assert word(3, IntDistribution(1, 5)) == "3"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("model.lr=1..0.1", "search: model.lr=1..0.1 is not possible; allowed: low..high, or log:low..high"),
        ("model.lr=log:0..1", "search: model.lr=log:0..1 is not possible"),
        ("model.lr=0.1..", "search: model.lr=0.1.. is not possible"),
        ("model.epochs=1..5,10", "search: model.epochs=1..5,10 is not possible; allowed: low..high"),
        ("model.lr=a..b", "search: model.lr=a..b is not possible"),
        ("model.lr=.nan..1", "search: model.lr=.nan..1 is not possible"),
        ("model.lr=1...inf", "search: model.lr=1...inf is not possible"),
        ("model.lr=lin:0.1..1", "search: model.lr=lin:0.1..1 is not possible"),
        ("model.lr=0.1", "search: model.lr=0.1 is a single value, which leaves nothing to search; allowed: several"),
        ("model.lr=0.1..0.1", "search: model.lr=0.1..0.1 is a single value"),
        ("model.lr", "search: model.lr is not possible; allowed: a setting and its values"),
        ("model.lr=0.1..1 --search model.lr=1,2", "search: model.lr=1,2: model.lr, or one of its values, is listed"),
        ("model.lr=-1..1", "model.lr: -1 is not possible"),
        ("model.epochs=0.5..1", "model.epochs: 0.5 is not possible"),
        ("model.lrr=0.1..1", "model.lrr: FedAvg has no such option"),
        ("seed_everything=1..9", "--seed_everything is not possible, the sweep sets it"),
        ("config=a,b", "search: config is not possible"),
        ("model.lr=0.1..1 --vary model.epochs=1,2", "vary: not possible with search; allowed: one of them"),
        ("model.lr=0.1..1 --trials 0", "trials: 0 is not possible"),
        (
            "model.lr=0.1..1 -- --checkpoint.monitor=test/global/accuracy/mean",
            "checkpoint.monitor: test/global/accuracy/mean is not possible with search",
        ),
        ("model.lr=0.1..1 -- --data.val_fraction=0", "data.val_fraction: 0 is not possible with search; allowed: more"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_is_written(words, line, capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--methods", "fedavg.yaml", "--seeds", "1", "--search", *words.split()])
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"pfl: error: {line}")
    assert list(map(str, Path().iterdir())) == ["fedavg.yaml"]


@pytest.mark.parametrize(
    "changes", [{"seeds": [1]}, {"space": ["model.lr=log:0.01..1", SPACE[1]]}, {"passed": ["--trainer.max_steps=7"]}]
)
def test_another_search_in_the_same_folder_is_refused_and_its_table_stays(changes, scores):
    found(1)
    table = Path("sweep/search/fedavg/trials.csv").read_text()
    with pytest.raises(PflError, match=r"^search: 'sweep/search/fedavg' has .*; keep it, or choose another --out$"):
        found(2, **changes)
    assert Path("sweep/search/fedavg/trials.csv").read_text() == table


def test_trials_of_other_settings_in_a_file_are_not_mixed(scores, monkeypatch):
    found(1)

    def changed(*arguments):
        runs = quickly_planned(*arguments)
        for run in runs:
            run.settings["data"]["init_args"]["root"] = "other"
        return runs

    monkeypatch.setattr(search, "planned_runs", changed)
    line = "^search: data.root: 'sweep/search/fedavg' was made with data, and now there is other; keep it, or choose"
    with pytest.raises(PflError, match=line):
        found(2)


def test_a_missing_library_gets_a_line(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "pfl_lightning.cli.search")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit):
        main(["sweep", "--methods", "fedavg.yaml", "--seeds", "1", "--search", "model.lr=1,2"])
    assert 'search: needs pip install "pfl_lightning[search]"' in capsys.readouterr().err


def test_the_score_is_that_of_the_best_checkpoint():
    state = {RoundCheckpoint().state_key: {"best_score": 0.75, "best_round": 3}}

    class Finished:
        def resume(self):
            return self

        content = {"callbacks": state, "monitor": "val/global/accuracy/mean"}  # noqa: RUF012

    assert search.score_of(Finished()) == 0.75
    state[RoundCheckpoint().state_key]["best_score"] = -math.inf
    with pytest.raises(
        PflError, match=r"^search: val/global/accuracy/mean was not logged; allowed: data with validation"
    ):
        search.score_of(Finished())


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "at_once"), [(1, 1), (4, 2), (5, 2)])
def test_as_many_trials_run_at_once_as_have_room_for_all_seeds(jobs, at_once, monkeypatch):
    asked = []
    monkeypatch.setattr(search.Search, "run", lambda _, trials, at_once, sweep: asked.append(at_once) or True)
    main(["sweep", "--methods", "fedavg.yaml", "--seeds", "1", "2", f"--jobs={jobs}", "--search=model.lr=1,2"])
    assert asked == [at_once]
