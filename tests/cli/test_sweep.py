import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from fakes.forked import Command, pfl
from fakes.tables import read_table, wait_for_round

from pfl_lightning.cli import execution, main, search, sweep
from pfl_lightning.cli.execution import Sweep, is_refusal
from pfl_lightning.cli.planning import Plan, PlannedRun, with_method
from pfl_lightning.objects import import_object
from pfl_lightning.runs.resume import Resume
from pfl_lightning.runs.run_settings import settings_of
from pfl_lightning.settings.values import flat

# imported here: within capsys, its import would close the stderr that absl has, which is pytest's
needs_submitit = pytest.mark.skipif(import_object("submitit") is None, reason="needs the extra cluster")
FEDAVG = ["--methods", "fedavg.yaml", "--seeds", "1"]
DATA = """
data: {class_path: Digits, init_args: {num_clients: 5}}
model: {init_args: {network: {class_path: MLP, init_args: {hidden: [4]}}, local: {lr: 0.2}}}
trainer: {max_steps: 1, val_check_interval: 1, logger: {class_path: CSVLogger, init_args: {save_dir: csv}}}
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_settings(in_an_empty_folder):
    Path("data.yaml").write_text(DATA)
    Path("fedavg.yaml").write_text("model: {class_path: FedAvg}")
    Path("fedrep.yaml").write_text("model: {class_path: FedRep, init_args: {local: {lr: 0.1}}}")


@pytest.fixture
def swept(capsys):
    """Runs a sweep, and returns its exit code and the lines of its output."""

    def run(*args: str) -> tuple[int, list[str]]:
        code = 0
        capsys.readouterr()
        try:
            main(["sweep", *args])
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def planned(monkeypatch):
    """The runs that a sweep would start."""
    runs = []
    monkeypatch.setattr(sweep.Sweep, "execute", lambda _, run: runs.append(run) or run.folder)
    return runs


def rounds(folder: str | Path) -> list[str]:
    return [row["round"] for row in read_table(f"{folder}/metrics.csv")]


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ("--trainer.max_steps 4", "M --trainer.max_steps 4"),
        ("--config A --config=B --lr 1", "--config A --config=B M --lr 1"),
        ("--lr 1 -c A --n 2", "--lr 1 -c A M --n 2"),
        ("", "M"),
    ],
)
def test_the_method_comes_behind_the_files_and_before_the_options(passed, expected):
    for method, words in (("fedavg.yaml", "--config fedavg.yaml"), ("mine.MyMethod", "--model mine.MyMethod")):
        assert with_method(passed.split(), method) == expected.replace("M", words).split()


def fit(folder: str, rounds: int, *args: str) -> None:
    """A run as a sweep makes it, whose seed is the last part of its folder."""
    options = [
        f"--seed_everything={folder[-1]}",
        f"--trainer.default_root_dir={folder}",
        f"--trainer.max_steps={rounds}",
    ]
    main(["fit", "--config=data.yaml", *args, *options, "--trainer.enable_progress_bar=false"])


@pytest.mark.slow
def test_a_sweep_continues_skips_and_reports_and_names_what_to_compare(swept):
    """One run is finished, and one is to be continued."""
    fit("sweep/fedavg/seed_3", 2, "--config=fedavg.yaml")
    fit("sweep/fedrep/seed_3", 1, "--config=fedrep.yaml")
    folders = ["sweep/fedavg/seed_3/FedAvg-Digits/version_0", "sweep/fedrep/seed_3/FedRep-Digits/version_0"]
    command = ["--methods", "fedavg.yaml", "fedrep.yaml", "--seeds", "3", "--jobs", "2"]
    code, lines = swept(*command, "--", "--config", "data.yaml", "--trainer.max_steps", "2")
    scores = [f"{100 * float(read_table(f'{folder}/metrics.csv')[-1]['test/accuracy']):.1f}" for folder in folders]
    assert code == 0
    assert f"1/2 fedavg, seed 3: finished, test accuracy (%): {scores[0]}" in lines
    assert "1/2 fedavg, seed 3: starts round 1 of 2" not in lines
    assert "2/2 fedrep, seed 3: starts round 2 of 2" in lines
    assert f"2/2 fedrep, seed 3: finished, test accuracy (%): {scores[1]}" in lines
    assert lines[-1] == f"Compare: pfl compare {' '.join(folders)} --out sweep/comparison"
    assert [rounds(folder) for folder in folders] == [["0", "1", "2"]] * 2
    # the method's file wins over the data's
    assert "lr: 0.1" in Path(folders[1], "config.yaml").read_text()


@pytest.mark.slow
def test_a_finished_run_of_other_code_is_skipped_with_a_line(swept, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    code = "from pfl_lightning.methods import FedAvg\n\n\nclass Swept(FedAvg):\n    pass\n"
    Path("swept_method.py").write_text(code)
    command = ["--methods", "swept_method.Swept", "--seeds", "1", "--", "--config=data.yaml"]
    fit("sweep/Swept/seed_1", 1, "--model=swept_method.Swept")
    line = "1/1 Swept, seed 1: swept_method has changed since it was trained; to train it again, remove "
    for change, lines_of_it in (("", 0), ("    # another rule\n", 1)):
        Path("swept_method.py").write_text(f"{code}{change}")
        status, lines = swept(*command)
        assert status == 0
        assert [said.startswith(line) for said in lines].count(True) == lines_of_it
        assert not any("starts" in said for said in lines)


def test_runs_on_other_data_get_a_comparison_each(planned, swept):
    _, lines = swept(
        "--methods=fedavg.yaml", "--seeds=1", "--vary=data.num_clients=3,4", "--vary=model.local.lr=0.1,1.0"
    )
    folders = ["sweep/fedavg,num_clients={},lr=0.1/seed_1 sweep/fedavg,num_clients={},lr=1.0/seed_1"] * 2
    assert lines == [
        f"Compare: pfl compare {both.format(clients, clients)} --out sweep/comparison_{number}"
        for number, (clients, both) in enumerate(zip((3, 4), folders, strict=True), start=1)
    ]


@pytest.mark.slow
def test_a_finished_run_is_skipped_unless_its_settings_are_others(swept):
    folder = "sweep/fedavg,hidden=[8]/seed_1"
    fit(folder, 2, "--config=fedavg.yaml", "--model.network.hidden=[8]")
    command = [*FEDAVG, "--vary=model.network.hidden=[8]", "--", "--config=data.yaml", "--trainer.max_steps=2"]
    compare = f"Compare: pfl compare '{folder}/FedAvg-Digits/version_0' --out sweep/comparison"
    code, lines = swept(*command, "--data.root=elsewhere", "--model.chunk_size=2", "--checkpoint.every=1")
    assert code == 0
    assert lines[0].startswith("1/1 fedavg, hidden=[8], seed 1: finished, test accuracy (%): ")
    assert lines[1:] == [compare]
    for option, line in (
        ("model.local.epochs=3", "model.local.epochs: 1 in"),
        ("model.local.lr=0.3", "model.local.lr: 0.2 in the checkpoint, 0.3 now"),
        ("trainer.max_steps=1", "trainer.max_steps: 2 in the finished run, 1 now; keep the old value, or choose"),
        ("trainer.callbacks+=SparsityTracker", "trainer.callbacks.SparsityTracker"),
        ("percentile_errors.errors=true", "percentile_errors.errors: False in the finished run, True now"),
    ):
        code, lines = swept(*command, f"--{option}")
        assert code == 1
        assert lines[0].startswith(f"1/1 fedavg, hidden=[8], seed 1: failed: {line}")


def test_a_sweep_says_how_long_the_runs_take_that_are_still_to_start(monkeypatch, swept):
    """One has done all of its five rounds, one three of them; each of the others takes five minutes."""
    done = {"a": 5, "b": 3, "c": 0, "d": 0, "e": 0}
    seconds = [0]

    def fit(_, run: PlannedRun, args: list[str], stderr: BinaryIO):
        done[run.name] = 5
        seconds[0] += 1 if args else 300

    def resume(run: PlannedRun):
        content = {"global_step": done[run.name], "callbacks": {}, "config": run.settings}
        return Resume(Path(), content, run.folder) if done[run.name] else None

    monkeypatch.setattr(execution, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(sweep.Sweep, "fit", fit)
    monkeypatch.setattr(PlannedRun, "resume", resume)
    runs = [PlannedRun(name, Path(name), [], {"trainer": {"max_steps": 5}, "data": {}}) for name in done]
    monkeypatch.setattr(Plan, "grid", lambda *_: runs)
    code, lines = swept(*FEDAVG)
    assert code == 0
    assert lines[:-1] == [
        "a: finished",
        "b: starts round 4 of 5",
        "b: finished",
        "c: starts round 1 of 5",
        "c: finished; 2 to start, which take about 0:10:00",
        "d: starts round 1 of 5",
        "d: finished; 1 to start, which take about 0:05:00",
        "e: starts round 1 of 5",
        "e: finished",
    ]


BROKEN = """
import errno, os, signal, sys
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg


class Broken(FedAvg):
    def __init__(self, end: str, **kwargs) -> None:
        super().__init__(**kwargs)
        self.end = end

    def select_clients(self, batch):
        if self.end != "never":
            print("pfl: note: so far", file=sys.stderr)
        if self.end == "error":
            raise PflError("no luck")
        if self.end == "bug":
            raise KeyError("no luck")
        if self.end == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.end == "exit":
            sys.exit(3)
        if self.end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().select_clients(batch)
"""


@pytest.fixture
def broken(monkeypatch):
    Path("broken.py").write_text(BROKEN)
    Path("broken.yaml").write_text("model: {class_path: broken.Broken}")
    monkeypatch.syspath_prepend("")
    monkeypatch.delitem(sys.modules, "broken", raising=False)


@pytest.mark.slow
def test_runs_at_the_same_time_end_each_with_its_last_line_or_its_signal(broken, swept, monkeypatch):
    ends = {
        "never": "finished",
        "error": "failed: no luck",
        "bug": "failed: broken.py, line 18, in select_clients: KeyError: 'no luck' (PFL_DEBUG=1 shows the traceback)",
        "full": "failed: 'sweep/broken,end=full/seed_3/Broken-Digits/version_0' cannot be written (No space left on "
        "device); make room and repeat the command, with --ckpt_path last if a round was saved",
        "exit": "failed: pfl: note: so far",
        "kill": "failed: killed by SIGKILL",
    }
    made = []
    start = Sweep.execute_all
    monkeypatch.setattr(Sweep, "execute_all", lambda sweep, runs: made.append(sweep) or start(sweep, runs))
    command = ["--methods=broken.yaml", "--seeds=3", f"--vary=model.end={','.join(ends)}", "--jobs=2"]
    code, lines = swept(*command, "--", "--config=data.yaml")
    assert made[0].refused == {Path("sweep/broken,end=error/seed_3")}
    assert code == 1
    names = [f"{number}/{len(ends)} broken, end={end}, seed 3" for number, end in enumerate(ends, start=1)]
    runs = dict(zip(names, ends.values(), strict=True))
    assert {f"{run}: starts round 1 of 1" for run in runs} < {*lines}
    finished, *failed = (f"{run}: {line}" for run, line in runs.items())
    assert {*failed} < {*lines}
    assert any(line.startswith(finished) for line in lines)
    assert not Path("sweep/broken,end=never/seed_3/stderr.txt").read_text()


@pytest.mark.parametrize(("file", "line"), [("sweep", "Not a directory"), ("sweep/fedavg/seed_1", "File exists")])
def test_a_file_in_the_place_of_a_folder_fails_its_run_alone(file, line, swept):
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text("mine")
    code, (*_, last) = swept(*FEDAVG, "--", "--config=data.yaml")
    assert code == 1
    assert last.startswith("1/1 fedavg, seed 1: failed: ")
    assert line in last
    assert Path(file).read_text() == "mine"


@pytest.mark.slow
def test_what_varies_makes_a_grid_with_a_folder_for_every_run(planned, swept):
    vary = ["--vary", "model.local.lr=0.1,1e-3", "--vary", "model.network.hidden=[8],[4, 4]"]
    swept(*FEDAVG, "2", *vary, "--", "--config=data.yaml", "--model.local.lr=0.5")
    grid = [(lr, hidden, seed) for lr in (0.1, 0.001) for hidden in ([8], [4, 4]) for seed in (1, 2)]
    assert len(planned) == len(grid)
    for number, (run, (lr, hidden, seed)) in enumerate(zip(planned, grid, strict=True), start=1):
        widths = str(hidden).replace(" ", "")
        assert run.name == f"{number}/8 fedavg, lr={lr}, hidden={widths}, seed {seed}"
        assert run.folder == Path(f"sweep/fedavg,lr={lr},hidden={widths}/seed_{seed}")
        model = run.settings["model"]["init_args"]
        assert (model["local"]["lr"], model["network"]["init_args"]["hidden"]) == (lr, hidden)
        assert run.settings["seed_everything"] == seed
    assert run.settings == settings_of(run.args), "though only the first seed of some settings is parsed"


@pytest.mark.parametrize(
    ("key", "words", "values", "folders"),
    [
        (
            "model.network",
            "MLP,LogisticRegression",
            ["pfl_lightning.models.MLP", "pfl_lightning.models.LogisticRegression"],
            ["network=MLP", "network=LogisticRegression"],
        ),
        ("model.local.clip_norm", "null,2", [None, 2], ["clip_norm=null", "clip_norm=2"]),
        ("model.local.decay_biases", "true", [True], ["decay_biases=true"]),
        ("data.root", "a/b,'c, d'", ["a/b", "c, d"], ["root=a%2Fb", "root=c,%20d"]),
        ("trainer.accelerator", "hpu", ["hpu"], ["accelerator=hpu"]),  # which the runs have elsewhere
    ],
)
def test_values_are_yaml_and_folders_are_safe(key, words, values, folders, planned, swept):
    assert swept(*FEDAVG, f"--vary={key}={words}", "--", "--config=data.yaml")[0] == 0
    assert [dict(flat(run.settings))[key] for run in planned] == values
    assert [run.folder.parent.name for run in planned] == [f"fedavg,{folder}" for folder in folders]


def test_methods_are_files_and_classes_each_with_a_name_of_its_own(planned, swept):
    Path("mine.py").write_text("from pfl_lightning.methods import FedAvg\n\nclass MyMethod(FedAvg): ...\n")
    for folder in ("first", "second", "tuned"):
        Path(folder).mkdir()
        name = "best" if folder == "tuned" else "fedper"
        Path(folder, f"{name}.yaml").write_text("model: {class_path: FedPer}")
    files = ["first/fedper.yaml", "second/fedper.yaml", "tuned/best.yaml", "fedrep.yaml"]
    swept("--methods", "FedAvg", "mine.MyMethod", *files, "--seeds=1", "--", "--config=data.yaml", "--lr=0.3")
    names = ["FedAvg", "MyMethod", "first", "second", "tuned", "fedrep"]
    assert [run.folder for run in planned] == [Path("sweep", name, "seed_1") for name in names]
    classes = ["FedAvg", "MyMethod", "FedPer", "FedPer", "FedPer", "FedRep"]
    assert [run.settings["model"]["class_path"].rpartition(".")[2] for run in planned] == classes
    assert {run.settings["model"]["init_args"]["local"]["lr"] for run in planned} == {0.3}


def test_keys_that_end_alike_are_written_out(planned, swept):
    swept(*FEDAVG, "--vary=model.local.lr=0.1", "--vary=model.server_optimizer.lr=1.0")
    assert planned[0].folder == Path("sweep/fedavg,model.local.lr=0.1,model.server_optimizer.lr=1.0/seed_1")


@pytest.mark.slow
def test_a_file_says_what_the_command_line_says(planned, swept):
    Path("experiment.yaml").write_text(
        """
        seeds: [1, 2]
        methods: fedavg.yaml
        vary:
        - model.local.lr=0.1,0.2
        passed: [--config, data.yaml, --model.local.epochs=3]
        out: "a folder"
        """
    )
    more = ["--seeds", "5", "--vary", "model.local.momentum=0.9", "--"]
    swept("--config", "experiment.yaml", *more, "--model.local.epochs=2")
    of_the_file = list(planned)
    planned.clear()
    words = ["--methods", "fedavg.yaml", "--vary", "model.local.lr=0.1,0.2", "--out=a folder", *more]
    swept(*words, "--config", "data.yaml", "--model.local.epochs=3", "--model.local.epochs=2")
    assert len(planned) == 2
    assert of_the_file == planned


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "runs"),
    [
        ("conformity", [], 12),
        ("digits_rates", ["--methods", "methods/fedrep", "--trials=1"], 3),
    ],
    ids=lambda value: str(value),
)
def test_shipped_sweeps_can_be_run_anywhere(name, options, runs, planned, swept, monkeypatch):
    monkeypatch.setattr(search, "score_of", lambda run: 0.5)
    monkeypatch.setattr(search, "has_begun", lambda folder: True)
    code, _ = swept("--config", f"sweeps/{name}", *options)
    assert (code, len(planned)) == (0, runs)


GIVEN = " ".join(FEDAVG)
BOTH = "--methods fedrep.yaml fedavg.yaml --seeds 1 --vary"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        # a setting without values, or with what is no YAML
        (
            f"{BOTH} model.local.lr",
            "vary: model.local.lr is not possible; allowed: a setting and its values: model.local.lr=0.1,0.03",
        ),
        (f"{BOTH} =1", "vary: =1 is not possible"),
        (f"{BOTH} model.local.lr=[1", "vary: model.local.lr=[1 is not possible"),
        # twice
        (
            f"{BOTH} model.local.lr=0.1,0.2,1e-1",
            "vary: model.local.lr=0.1,0.2,1e-1: model.local.lr, or one of its values, is listed",
        ),
        (
            f"{BOTH} model.local.lr=1 --vary model.local.lr=2",
            "vary: model.local.lr=2: model.local.lr, or one of its values, is listed twice",
        ),
        ("--methods fedrep.yaml ./fedrep.yaml --seeds 1", "methods: fedrep is listed twice"),
        ("--methods FedRep FedRep --seeds 1", "methods: FedRep is listed twice"),
        ("--methods os.path --seeds 1", "methods: os.path is not possible; allowed: a file that exists, or a name"),
        # settings of a run that are wrong, the first of them of the second method
        (f"{BOTH} model.head_epochs=1,2", "model.head_epochs: FedAvg has no such option"),
        (f"{BOTH} model.local.lr=0.1,fast", "model.local.lr: fast is not possible; allowed: a number"),
        (f"{GIVEN} -- --trainer.rounds=3", "--trainer.rounds: no such option"),
        # what is no setting of a run, or the sweep's own
        (f"{BOTH} config=a.yaml,b.yaml", "vary: config is not possible; allowed: settings of a run"),
        (f"{BOTH} model.help=FedRep", "vary: model.help is not possible"),
        (f"{BOTH} seed_everything=1,2", "--seed_everything is not possible, the sweep sets it"),
        (f"{GIVEN} -- --ckpt_path=last", "--ckpt_path=last is not possible, the sweep sets it"),
        # options of the sweep, and its files
        (f"{GIVEN} --jobs 0", "jobs: 0 is not possible"),
        (f"{GIVEN} --rounds 2", "--rounds: no such option; did you mean --out?; options of pfl fit come after --"),
        ("", "--seeds, --methods: a value is missing"),
        ("-- --help", "--seeds, --methods: a value is missing"),
        (f"{GIVEN} -- --help", "--help is not possible"),
        ("--methods fedavg.yaml", "--seeds: a value is missing"),
        ("--methods fedavg.yaml --config empty.yaml", "seeds: a value is missing"),
        ("--seeds 1 --config no_method.yaml", "methods: a value is missing"),
        (f"{GIVEN} --out=", "out must be a path, such as . for this folder, got ''"),
        (f"{GIVEN} --config list.yaml", "config: [seeds, methods] is not possible; allowed: settings by their"),
        (f"{GIVEN} --config=wrong.yaml", "rounds: no such option"),
        # what the library of clusters knows
        *[
            pytest.param(f"{GIVEN} --submit {words}", f"submit: {line}", marks=needs_submitit)
            for words, line in [
                ("slurm_partition gpu", "slurm_partition is not possible; allowed: a parameter and its value"),
                ("timeout_min=[1", "timeout_min=[1 is not possible; allowed: a parameter and its value"),
                ("minutes=3", "Parameter 'minutes' need to be prefixed"),
                ("timeout_min=long", 'Parameter "timeout_min" expected type'),
            ]
        ],
    ],
)
def test_what_cannot_be_planned_is_refused_before_anything_starts(words, line, planned, refused):
    Path("list.yaml").write_text("[seeds, methods]")
    Path("wrong.yaml").write_text("rounds: 3")
    Path("empty.yaml").write_text("seeds: []")
    Path("no_method.yaml").write_text("methods: []")
    code, error = refused("sweep", *words.split())
    assert error.startswith(line)
    assert code == 2
    assert not planned


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("methods: {a: 1}", "methods: {'a': 1} is not possible; allowed: a word (in sweep.yaml)"),
        ("methods: 3", "methods: 3 is not possible; as a word it needs quotes, as yes, no, on, off and numbers do"),
        ("out: [a]", "out: ['a'] is not possible; allowed: a word (in sweep.yaml)"),
        ("vary: {a: 1}", "vary: {'a': 1} is not possible; allowed: a setting and its values: model.local.lr=0.1,0.03"),
        ("search: [{a: 1}]", "search: {'a': 1} is not possible; allowed: a setting and its values: model.local.lr=0.1"),
        ("passed: {a: 1}", "passed must be words as on the command line, such as --rounds=3, got {'a': 1}"),
    ],
)
def test_what_a_file_has_in_the_place_of_words_is_refused(text, line, planned, refused):
    Path("sweep.yaml").write_text(f"{text}\n")
    code, found = refused("sweep", "--methods=methods/fedavg", "--config=sweep.yaml", "--seeds=1")
    assert code == 2
    assert found.startswith(line)


def test_jobs_need_a_library(monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "submitit", None)
    _, line = refused("sweep", *FEDAVG, "--submit", "timeout_min=1")
    assert line.startswith('submit: needs uv pip install "pfl_lightning[cluster]"')


@pytest.mark.slow
@needs_submitit
def test_jobs_of_a_cluster_are_told_and_skipped_like_other_runs(broken, swept):
    command = ["--methods=broken.yaml", "--seeds=1", "--jobs=2", "--submit", "timeout_min=5"]
    passed = ["--", "--config=data.yaml"]
    code, lines = swept(*command, "--vary=model.end=never,error", *passed)
    assert code == 1
    assert "2/2 broken, end=error, seed 1: failed: no luck" in lines
    assert any(line.startswith("1/2 broken, end=never, seed 1: finished") for line in lines)
    assert rounds("sweep/broken,end=never/seed_1/Broken-Digits/version_0") == ["0", "1"]
    jobs = {*Path("sweep/submitit").iterdir()}
    assert swept(*command, "--vary=model.end=never", *passed)[0] == 0
    assert jobs == {*Path("sweep/submitit").iterdir()}, "no job for a finished run"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_the_run_save_and_the_same_command_goes_on(number, swept, monkeypatch):
    command = ["--config", "data.yaml", "--trainer.val_check_interval", "1000", "--trainer.max_steps"]
    started = Command(Path.cwd(), "sweep", "--methods=fedrep.yaml", "--seeds", "1", "2", "--", *command, "100000")
    run = Path("sweep/fedrep/seed_1/FedRep-Digits/version_0")
    wait_for_round(2, run)
    os.kill(started.process.pid, number)
    code, out, _ = started.end()
    assert code == 128 + number
    assert out.splitlines() == ["1/2 fedrep, seed 1: starts round 1 of 100000", "1/2 fedrep, seed 1: stopped"]
    done = int(rounds(run)[-1])
    monkeypatch.setattr(sweep.Sweep, "fit", lambda _, run, args, __: pfl(Path.cwd(), "fit", *run.args, *args))
    code, lines = swept("--methods=fedrep.yaml", "--seeds=1", "--", *command, str(done + 1))
    assert (code, lines[0]) == (0, f"1/1 fedrep, seed 1: starts round {done + 1} of {done + 1}")
    assert [int(index) for index in rounds(run)] == list(range(done + 2))


@pytest.mark.slow
def test_a_run_saves_if_its_sweep_is_killed_and_another_sweep_waits_for_it():
    command = ["--config", "data.yaml", "--trainer.val_check_interval", "1000", "--trainer.max_steps", "100000"]
    started = Command(Path.cwd(), "sweep", "--methods=fedrep.yaml", "--seeds", "1", "--", *command)
    run = Path("sweep/fedrep/seed_1/FedRep-Digits/version_0")
    wait_for_round(2, run)
    started.process.kill()
    started.end()
    with Sweep(1).claimed(PlannedRun("again", run.parents[1], [], {})) as stderr:
        assert f"saved round {rounds(run)[-1]};" in Path(stderr.name).read_text()
        assert not (run / ".lock").exists()


@pytest.mark.slow
def test_a_run_saves_if_its_launcher_is_killed_and_the_next_one_has_another():
    command = ["fit", "--config=data.yaml", "--config=fedrep.yaml", "--trainer.max_steps=100000"]
    folder = Path("runs/FedRep-Digits/version_0")
    sweep = Sweep(1)
    with sweep.forwarding(), open("stderr.txt", "wb") as stderr:
        with sweep.launcher() as first:
            run = first.start(command, stderr)
            wait_for_round(2, folder)
            first.process.kill()
            assert run.wait() == -signal.SIGKILL
        with sweep.launcher() as second:
            assert second is not first
    deadline = time.monotonic() + 60
    while (saved := "saved round" in Path("stderr.txt").read_text()) is False and time.monotonic() < deadline:
        time.sleep(0.1)
    assert saved


def test_a_run_that_another_sweep_makes_is_awaited(monkeypatch, capsys):
    run = PlannedRun("a run", Path("sweep/a"), [], {})
    waits = threading.Event()
    order = []

    def second():
        with Sweep(1).claimed(run):
            order.append("second")

    thread = threading.Thread(target=second)
    monkeypatch.setattr(execution, "sleep", lambda _: waits.set() or time.sleep(0.01))
    with Sweep(1).claimed(run):
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert capsys.readouterr().out == "a run: waits for another sweep in 'sweep/a'\n"


@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        (2, "pfl: error: model.local.lr: -1 is not possible", True),
        (1, "pfl: error: FedAvg diverged by round 3; try a model.local.lr below 1.0", True),
        (75, "pfl: error: checkpoint: cannot write 'last.ckpt' (No space left on device)", False),
        (1, "pfl: error: not enough memory: out of memory (PFL_DEBUG=1 shows the traceback)", False),
        (1, "RuntimeError: a process of this run has ended", False),
        (1, "exit code 1, see 'sweep/a/stderr.txt'", False),
    ],
)
def test_only_what_settings_have_ended_counts_as_refused(code, line, expected):
    assert is_refusal(code, line) == expected


def test_signals_that_are_ignored_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Sweep(1).forwarding():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
