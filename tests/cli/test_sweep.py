import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pfl_lightning.cli import main, sweep
from pfl_lightning.cli.sweep import with_method

DATA = """
data: {class_path: Digits, init_args: {num_clients: 5}}
model: {init_args: {network: {class_path: MLP, init_args: {hidden: [4]}}, lr: 0.2}}
trainer: {max_steps: 1, val_check_interval: 1}
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pfl"])
    for name, text in {
        "data": DATA,
        "fedavg": "model: {class_path: FedAvg}",
        "fedrep": "model: {class_path: FedRep, init_args: {lr: 0.1}}",
        "headless": "model: {class_path: FedRep, init_args: {network: {class_path: LogisticRegression}}}",
    }.items():
        Path(f"{name}.yaml").write_text(text)


def swept(capsys, *args: str) -> tuple[int, list[str]]:
    """Exit code of a sweep, and what it told."""
    code = 0
    try:
        main(["sweep", *args])
    except SystemExit as stop:
        code = stop.code
    return code, capsys.readouterr().out.splitlines()


def rounds(folder: str) -> list[str]:
    with Path(folder, "metrics.csv").open(newline="") as file:
        return [row["round"] for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ("--trainer.max_steps 4", "--config M --trainer.max_steps 4"),
        ("--config A --config=B --lr 1", "--config A --config=B --config M --lr 1"),
        ("--lr 1 -c A --n 2", "--lr 1 -c A --config M --n 2"),
        ("", "--config M"),
    ],
)
def test_the_method_comes_behind_the_files_and_before_the_options(passed, expected):
    assert with_method(passed.split(), "M") == expected.split()


def test_a_sweep_continues_skips_and_reports_and_names_what_to_compare(capsys):
    """One run is finished, one is to be continued, and one fails."""
    for method, done in (("fedavg", 2), ("fedrep", 1)):
        files = ["--config=data.yaml", f"--config={method}.yaml", "--trainer.enable_progress_bar=false"]
        root = f"--trainer.default_root_dir=sweep/{method}/seed_3"
        main(["fit", *files, "--seed_everything=3", root, f"--trainer.max_steps={done}"])
    capsys.readouterr()
    methods = ["--methods", "fedavg.yaml", "fedrep.yaml", "headless.yaml"]
    command = [*methods, "--seeds", "3", "--jobs", "2", "--", "--config", "data.yaml", "--trainer.max_steps", "2"]
    code, told = swept(capsys, *command)
    assert code == 1
    assert "1/3 fedavg, seed 3: finished" in told
    assert "1/3 fedavg, seed 3: starts round 1 of 2" not in told
    assert "2/3 fedrep, seed 3: starts round 2 of 2" in told
    assert "2/3 fedrep, seed 3: finished" in told
    failed = "3/3 headless, seed 3: failed: model.network: FedRep needs a body"
    assert f"{failed}; LogisticRegression has only one layer" in told
    folders = ["sweep/fedavg/seed_3/FedAvg-Digits/version_0", "sweep/fedrep/seed_3/FedRep-Digits/version_0"]
    assert told[-1] == f"Compare: pfl compare {' '.join(folders)} --out sweep/comparison"
    assert [rounds(folder) for folder in folders] == [["0", "1", "2"]] * 2
    # the method's file wins over the data's
    assert "lr: 0.1" in Path(folders[1], "config.yaml").read_text()


def test_a_finished_run_with_other_settings_is_not_taken_for_one(capsys):
    files = ["--config=data.yaml", "--config=fedavg.yaml", "--trainer.enable_progress_bar=false"]
    main(["fit", *files, "--seed_everything=1", "--trainer.default_root_dir=sweep/fedavg/seed_1"])
    capsys.readouterr()
    command = ["--methods", "fedavg.yaml", "--seeds", "1", "--", "--config", "data.yaml"]
    assert swept(capsys, *command, "--data.root", "elsewhere")[0] == 0
    for option, line in (("epochs=3", "model.epochs: 1 in"), ("lr=0.3", "model.lr: 0.2 in the checkpoint, 0.3 from")):
        code, told = swept(capsys, *command, f"--model.{option}")
        assert code == 1
        assert told[0].startswith(f"1/1 fedavg, seed 1: failed: {line}")


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (["--methods", "fedavg.yaml", "--seeds", "1", "--jobs", "0"], 2, "jobs: 0 is not possible"),
        (["--methods", "fedavg.yaml"], 2, "the following arguments are required: seeds"),
        (["--methods", "a/m.yaml", "b/m.yaml", "--seeds", "1"], 1, "methods: m is listed twice"),
        (
            ["--methods", "fedavg.yaml", "--seeds", "1", "--", "--model.lrr=1"],
            2,
            "model.lrr: FedAvg has no such option",
        ),
        (
            ["--methods", "fedavg.yaml", "--seeds", "1", "--", "--ckpt_path=last"],
            1,
            "--ckpt_path=last is not possible, the sweep sets it",
        ),
        (["--methods", "none.yaml", "--seeds", "1"], 2, ""),
    ],
)
def test_what_cannot_be_planned_is_refused_before_anything_starts(args, code, line, capsys, monkeypatch):
    monkeypatch.setattr(sweep.Sweep, "execute", lambda *_: pytest.fail("something starts"))
    with pytest.raises(SystemExit) as stop:
        main(["sweep", *args])
    assert stop.value.code == code
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"pfl: error: {line}")


@pytest.mark.slow
def test_a_signal_lets_the_run_save_and_the_same_command_goes_on():
    command = [sys.executable, "-m", "pfl_lightning", "sweep", "--methods", "fedrep.yaml", "--seeds", "1", "2"]
    command += ["--", "--config", "data.yaml", "--trainer.val_check_interval", "1000", "--trainer.max_steps"]
    process = subprocess.Popen([*command, "100000"], stdout=subprocess.PIPE, text=True, env=os.environ)
    run = Path("sweep/fedrep/seed_1/FedRep-Digits/version_0")
    deadline = time.monotonic() + 120
    while not (run / "metrics.csv").is_file() or len(rounds(run)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert told.splitlines() == ["1/2 fedrep, seed 1: starts round 1 of 100000", "1/2 fedrep, seed 1: stopped"]
    done = int(rounds(run)[-1])
    again = subprocess.run([*command, str(done + 1)], capture_output=True, text=True, check=True)
    assert again.stdout.startswith(f"1/2 fedrep, seed 1: starts round {done + 1} of {done + 1}\n")
    assert [int(index) for index in rounds(run)] == list(range(done + 2))
