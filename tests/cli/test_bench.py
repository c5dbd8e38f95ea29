"""Suites whose runs are made in this process, and are small."""

import shutil
from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path
from typing import BinaryIO

import pytest
import yaml
from fakes.tables import read_table

from pfl_lightning.cli import bench, execution, main
from pfl_lightning.cli.execution import Sweep
from pfl_lightning.cli.planning import PlannedRun
from pfl_lightning.errors import PflError
from pfl_lightning.report import read_results

SUITE = """
data:
  few: [--data=Digits, --data.num_clients=4, --data.val_fraction=0.3,
    --trainer.max_steps=2, --trainer.val_check_interval=1]
  more: [--data=Digits, --data.num_clients=6, --data.val_fraction=0.3,
    --trainer.max_steps=1, --trainer.val_check_interval=1]
methods: [fedavg.yaml]
seeds: [1, 2]
search: ["model.local.lr=0.1,0.3"]
search_seeds: [1]
"""
NETWORK = "network: {class_path: MLP, init_args: {hidden: [4]}}"
METHOD = "model: {class_path: %s, init_args: {%s}}"


def write_suite() -> None:
    Path("suite.yaml").write_text(SUITE)
    for name in ("Local", "FedAvg", "Ditto"):
        Path(f"{name.lower()}.yaml").write_text(METHOD % (name, NETWORK))


@pytest.fixture(autouse=True)
def in_a_folder_with_a_suite(in_an_empty_folder):
    write_suite()


class Runs:
    """Makes the runs of a sweep in this process, each of which seems to take a second.

    Attributes:
        made: Their names.
        stops_at: At this run the sweep is asked to stop.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.stops_at = inf
        monkeypatch.setattr(Sweep, "fit", lambda *args: self.fit(*args))
        seconds = count()
        monkeypatch.setattr(execution, "monotonic", lambda: next(seconds))

    def fit(self, sweep: Sweep, run: PlannedRun, args: list[str], stderr: BinaryIO) -> None:
        if len(self.made) >= self.stops_at:
            sweep.pass_on(2)
            raise PflError("stopped")
        self.made.append(run.name)
        main(["fit", *run.args, *args])


@pytest.fixture
def runs(monkeypatch):
    return Runs(monkeypatch)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with the results of the suite on one of its data sets."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(tmp_path_factory.mktemp("kept"))
        write_suite()
        Runs(monkeypatch)
        assert benched("--only=few", "--out=kept") == 0
        return Path("kept").resolve()


def benched(*words: str) -> int:
    try:
        main(["bench", "--suite=suite.yaml", *words])
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.mark.slow
def test_a_suite_that_is_stopped_goes_on_and_ends_with_the_same_bytes(kept, runs, capsys):
    for runs.stops_at in (1, 2):
        assert benched("--only=few", "--out=parts") == 130
    runs.stops_at = inf
    assert benched("--only=few", "--out=parts") == 0
    assert len(runs.made) == 2 + 1  # those that tune, one of which is reported, and the other seed
    assert benched("--only=few", "--out=parts") == 0
    assert len(runs.made) == 2 + 1
    assert "Ranks of 2 methods" in capsys.readouterr().out  # FedAvg has two models
    names = {path.name for path in kept.iterdir() if path.is_file()}
    assert names >= {"scores.csv", "curves.csv", "suite.yaml", "ranks.csv", "table_few.csv", "ranks.png", "report.md"}
    for name in names:
        assert Path("parts", name).read_bytes() == (kept / name).read_bytes(), name


@pytest.mark.slow
def test_settings_are_chosen_on_validation_samples_of_the_runs_that_are_reported(kept):
    trials = read_table(kept / "few/search/fedavg/trials.csv")
    best = max(trials, key=lambda trial: float(trial["value"]))["model.local.lr"]
    assert {trial["model.local.lr"] for trial in trials} == {"0.1", "0.3"}
    made = [yaml.safe_load(path.read_text()) for path in (kept / "few").glob("fedavg*/seed_*/*/*/config.yaml")]
    assert [settings["data"]["init_args"]["val_fraction"] for settings in made] == [0.3] * 3
    rates = [settings["model"]["init_args"]["local"]["lr"] for settings in made]
    assert sorted((rates.count(0.1), rates.count(0.3))) == [1, 2]
    assert rates.count(float(best)) == 2
    scores = read_table(kept / "scores.csv")
    assert [(row["label"], row["seed"]) for row in scores] == [
        (label, seed) for label in ("FedAvg", "FedAvg-FT") for seed in ("1", "2")
    ]
    assert {row["chosen"] for row in scores} == {f"lr={best}"}
    folder = next((kept / "few").glob("fedavg*/seed_2/*/version_0"))
    last = read_table(folder / "metrics.csv")[-1]
    assert float(scores[1]["mean"]) == float(last["test/global/accuracy/mean"])
    assert float(scores[3]["shared"]) == float(last["test/global/accuracy/mean"])
    assert float(scores[3]["mean"]) == float(last["test/finetuned/accuracy/mean"])
    assert {row["seconds"] for row in scores} == {"1.0"}
    shared = yaml.safe_load((kept / "few/tuned/fedavg.yaml").read_text())
    assert shared["model"]["init_args"]["local"]["lr"] == float(best)
    assert "seed_everything" not in shared


@pytest.mark.slow
def test_a_method_of_ones_own_is_put_beside_kept_results(kept, runs, capsys):
    assert benched("--out=mine", "--only=few", "--methods=[ditto.yaml]", f"--beside={kept}") == 0
    assert [name for name in runs.made if "ditto" not in name] == []
    assert {row["label"] for row in read_table("mine/scores.csv")} == {"FedAvg", "FedAvg-FT", "Ditto"}
    main(["bench", "--beside", "mine", str(kept), "--out=drawn"])
    assert "too" not in capsys.readouterr().out
    for name in ("scores.csv", "report.md", "ranks.png"):
        assert Path("mine", name).read_bytes() == Path("drawn", name).read_bytes()


@pytest.mark.slow
def test_it_has_its_rank_beside_results_on_more_data_sets_than_those_that_are_asked_for(kept, runs):
    few = read_results(kept)
    more = few._replace(
        suite={**few.suite, **{key: {"more": few.suite[key]["few"]} for key in ("data", "settings")}},
        score_kinds={"more": few.score_kinds["few"]},
        scores=few.scores.assign(data="more"),
        curves=few.curves.assign(data="more"),
        contents={},
    )
    Path("kept").mkdir()
    more.beside(few).write(Path("kept"))
    assert {row["data"] for row in read_table("kept/scores.csv")} == {"few", "more"}
    assert benched("--out=mine", "--only=few", "--methods=[ditto.yaml]", "--beside=kept") == 0
    assert {row["data"] for row in read_table("mine/scores.csv")} == {"few"}
    assert {row["method"] for row in read_table("mine/ranks.csv")} == {"FedAvg", "FedAvg-FT", "Ditto"}


@pytest.mark.slow
def test_results_of_another_suite_are_refused_before_anything_starts(kept, refused):
    words = ["--suite=suite.yaml", "--only=few", "--methods=[ditto.yaml]", "--trials=1", f"--beside={kept}"]
    code, said = refused("bench", *words)
    assert code == 2
    assert said == f"beside: trials: 20 in '{kept}', 1 here; compare results of the same suite"


@pytest.mark.slow
def test_results_of_other_settings_in_files_of_the_same_name_are_refused(kept, refused):
    own = yaml.safe_load((kept / "suite.yaml").read_text())
    assert own["suite"]["settings"]["few"]["data.num_clients"] == 4
    own["suite"]["settings"]["few"]["trainer.max_steps"] = 3
    Path("kept").mkdir()
    for name in ("scores.csv", "curves.csv"):
        shutil.copy(kept / name, Path("kept", name))
    Path("kept/suite.yaml").write_text(yaml.safe_dump(own))
    line = "beside: settings.few.trainer.max_steps: 3 in 'kept', 2 here; compare results of the same suite"
    words = ["--suite=suite.yaml", "--methods=[ditto.yaml]", "--only=few", "--beside=kept"]
    assert refused("bench", *words) == (2, line)


@pytest.mark.slow
def test_a_file_with_the_name_of_a_kept_method_takes_its_place_and_a_line_says_so(kept, runs, capsys):
    Path("fedavg.yaml").write_text(METHOD % ("Ditto", NETWORK))
    assert benched("--out=mine", "--only=few", f"--beside={kept}") == 0
    assert f"'{kept}' has results of fedavg, too, in whose place are those of this run" in capsys.readouterr().out
    assert {row["label"] for row in read_table("mine/scores.csv")} == {"Ditto"}


def let_diverge(runs: Runs, monkeypatch: pytest.MonkeyPatch, does: Callable[[str], bool]) -> None:
    fit = runs.fit

    def diverge(sweep, run, args, stderr):
        if does(run.name):
            stderr.write(b"pfl: error: FedAvg diverged by round 1; try a smaller rate\n")
            stderr.flush()
            raise PflError("diverged")
        fit(sweep, run, args, stderr)

    monkeypatch.setattr(runs, "fit", diverge)


@pytest.mark.slow
def test_a_run_that_diverges_is_counted_and_ranked_last(runs, monkeypatch):
    let_diverge(runs, monkeypatch, lambda name: "trial" not in name and "seed 2" in name)
    assert benched("--out=out", "--only=few") == 0
    assert "FedAvg (1 of 2 diverged)" in Path("out/report.md").read_text()
    last = [row for row in read_table("out/scores.csv") if row["label"] == "FedAvg"][-1]
    assert (last["seed"], last["mean"], last["diverged"]) == ("2", "", "True")


@pytest.mark.slow
def test_a_method_that_diverges_on_a_data_set_keeps_its_name_there(runs, monkeypatch):
    let_diverge(runs, monkeypatch, lambda name: "more: fedavg" in name)
    assert benched("--out=out", "--methods=[fedavg.yaml, local.yaml]", "--search=[]") == 0
    rows = [row for row in read_table("out/scores.csv") if row["data"] == "more" and row["diverged"] == "True"]
    assert [row["label"] for row in rows] == ["FedAvg", "FedAvg", "FedAvg-FT", "FedAvg-FT"]
    assert "Ranks of 3 methods" in Path("out/report.md").read_text()


@pytest.mark.slow
def test_a_data_set_on_which_all_methods_diverge_is_named(runs, monkeypatch):
    let_diverge(runs, monkeypatch, lambda name: name.startswith("more: "))
    assert benched("--out=out", "--search=[]") == 0
    assert "Every run on more has diverged." in Path("out/report.md").read_text()


@pytest.mark.parametrize(("search", "runs"), [("0.1,0.3", 12), ("log:0.1..1", 20)], ids=["choices", "a range"])
def test_a_method_that_fails_on_a_data_set_is_told_and_the_others_go_on(search, runs, monkeypatch, capsys):
    asked = []

    def tuned(_, task, sweep):
        asked.append(task)
        raise PflError("no space left")

    monkeypatch.setattr(bench.Bench, "tuned", tuned)
    searched = f"--search=['model.local.lr={search}']"
    assert benched("--out=out", "--methods=[local.yaml, fedavg.yaml]", searched, "--trials=4") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Reading the settings of 2 methods on 2 data sets"
    assert lines[1].startswith(f"2 methods on 2 data sets: {runs} runs; ")
    assert lines[2:] == [
        f"{data}: {method}: failed: no space left" for method in ("local", "fedavg") for data in ("few", "more")
    ]
    assert [task.data for task in asked] == ["few", "more"] * 2
    assert not Path("out").exists()


def test_runs_are_where_the_command_was_given_wherever_another_thread_reads_settings(monkeypatch):
    """Settings files are read in their folders, which is the working folder of all threads until then."""
    here = Path.cwd()
    places = []

    def fit(sweep, run, *_):
        places.append((sweep.folder, run.folder.parents[2]))
        raise PflError("no space left")

    monkeypatch.setattr(Sweep, "fit", fit)
    assert benched("--out=out", "--only=few", "--seeds", "1", "1") == 1
    assert places == [(here, here / "out")] * 2


def test_the_suite_that_comes_with_the_package_can_be_run_anywhere(monkeypatch):
    names = []
    monkeypatch.setattr(bench.Bench, "execute", lambda suite, sweep: names.extend(suite.tasks) or [])
    with pytest.raises(SystemExit):
        main(["bench", "--suite=two_cores", "--methods=[methods/fedrep, methods/fedbuff]", "--root=files"])
    assert [data for data, _ in names] == ["digits", "fashion_mnist", "femnist"] * 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--suite=two_core"], "config: two_core is not possible; allowed: a file that exists, or a name such as"),
        (["--out=x"], "methods: a value is missing; allowed: methods and data, as in a suite, or results with beside"),
        (["--suite=suite.yaml", "--only=many"], "only: many is not possible; allowed: few, more"),
        (["--suite=suite.yaml", "--methods=[x.yaml]"], "methods: x.yaml is not possible; allowed: a file that exists"),
        (
            ["--suite=suite.yaml", "--data={few: [--data=Digits, --data.num_client=3]}"],
            "data.num_client: Digits has no such option",
        ),
        (
            [
                "--suite=suite.yaml",
                "--methods=[fedavg.yaml, local.yaml]",
                "--data={few: [--data=Digits], more: [--data=Digits, --model.server_optimizer=SGD]}",
            ],
            "model.server_optimizer: Local has no such option",
        ),
        (["--suite=suite.yaml", "--search=['lr=0.1']"], "search: model.local.lr=0.1 is a single value"),
        (["--suite=suite.yaml", "--data={few: [--seed_everything=3]}"], "--seed_everything=3 is not possible"),
        (["--beside=nowhere"], "beside: 'nowhere' has no results of pfl bench; allowed: a folder of such results"),
        (["--suite=suite.yaml", "--seeds=-1"], "seeds: "),
    ],
)
def test_what_is_no_suite_is_refused_before_anything_starts(words, line, refused):
    code, said = refused("bench", *words)
    assert code == 2
    assert said.startswith(line)
