"""Runs of two processes on this machine, each of which takes seconds to start; so few of them serve many tests."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from fakes.forked import PATHS, Command, pfl

from pfl_lightning.cli import main

ROUNDS = 6
FIT = [
    *("fit", "--model=FedRep", "--model.network=MLP", "--model.network.hidden=[4]", "--data.num_clients=5"),
    *(f"--trainer.max_steps={ROUNDS}", "--trainer.val_check_interval=2", "--trainer.accelerator=cpu"),
    *("--trainer.callbacks+=ClientMetrics", "--trainer.callbacks.metric=torchmetrics.classification.MulticlassAUROC"),
    "--trainer.callbacks.metric.average=none",  # over the classes that a client holds
]
TWO = "--trainer.devices=2"
NO_FIGURES = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=csv"]  # which take most of a small run's time
SLURM = {
    "SLURM_JOB_ID": str(os.getpid()),  # whose last digits are the port; another worker has another
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NODELIST": "localhost",
    "SLURM_NODEID": "0",
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")]


def by_a_shell(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a module that Python runs, which imports all anew."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", *words]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return process.returncode, process.stdout, process.stderr


def tasks(folder: Path, *words: str) -> list[tuple[int | None, str]]:
    """Exit code and stderr of the two tasks of a SLURM job."""
    started = [Command(folder, *words, **SLURM, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in "01"]
    return [(code, err) for code, _, err in (task.end() for task in started)]


def ending(kind: str, **options: int) -> list[str]:
    """Options for a callback of the fakes."""
    settings = [f"--trainer.callbacks.{name}={value}" for name, value in options.items()]
    return [f"--trainer.callbacks+=fakes.endings.{kind}", *settings]


def run_of(folder: Path, version: int = 0) -> Path:
    return folder / "runs" / "FedRep-Digits" / f"version_{version}"


def assert_same(run: Path, expected: Path) -> None:
    """Two runs have the same tables and the same weights, up to rounding."""
    for name in ("metrics.csv", "clients.csv"):
        pd.testing.assert_frame_equal(pd.read_csv(run / name), pd.read_csv(expected / name), rtol=1e-4, atol=1e-4)
    states = [
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for folder in (run, expected)
    ]
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """A run of one process."""
    folder = tmp_path_factory.mktemp("straight")
    main([*FIT, f"--trainer.default_root_dir={folder}/runs", "--trainer.enable_progress_bar=false"])
    return run_of(folder)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Path, tuple[int, str, str], int]:
    """The folder of a run whose second process alone got SIGTERM before the fourth round, how it ended, and where."""
    folder = tmp_path_factory.mktemp("stopped")
    ended = pfl(folder, *FIT, TWO, *ending("Signalled", rank=1, rounds=3, number=signal.SIGTERM))
    return folder, ended, torch.load(run_of(folder) / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]


@pytest.fixture(scope="module")
def resumed(stopped) -> tuple[Path, tuple[int, str, str]]:
    """The same run after it was continued to its end."""
    folder, *_ = stopped
    words = [*FIT, TWO, "--ckpt_path=last", "--trainer.callbacks+=fakes.endings.Listening"]
    return folder, by_a_shell(folder, "pfl_lightning", *words)


def test_a_signal_to_one_process_stops_all_after_the_same_round(stopped):
    _, (code, _, err), round_saved = stopped
    assert (code, err) == (143, "pfl: saved round 4; add --ckpt_path last to the command to continue\n")
    assert round_saved == 4


def test_two_processes_have_one_run_folder_and_say_all_once(resumed):
    folder, (code, out, err) = resumed
    assert (code, err) == (0, "")
    assert out.count("Run folder:") == 1
    assert os.listdir(folder / "runs" / "FedRep-Digits") == ["version_0"]
    assert len(list(run_of(folder).glob("events.*"))) == 2  # one of each start


def test_two_processes_end_where_one_does(resumed, straight):
    assert_same(run_of(resumed[0]), straight)


@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="needs Linux")
def test_two_processes_of_a_machine_are_reached_from_there_alone(resumed):
    addresses = (resumed[0] / "listening").read_text().splitlines()
    assert len(addresses) >= 3  # the meeting place, and gloo in each
    assert {*addresses} == {"0100007F"}


def test_a_port_that_is_none_is_named_once(in_an_empty_folder, monkeypatch, capsys):
    monkeypatch.setenv("MASTER_PORT", "99999")
    monkeypatch.setattr(sys, "argv", ["pfl", *FIT, TWO])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == "pfl: error: MASTER_PORT: 99999 is not possible; allowed: 1 to 65535\n"


def test_two_processes_evaluate_a_run_and_write_one_table(resumed):
    folder, _ = resumed
    code, out, err = pfl(folder, "test", str(run_of(folder)), TWO, "--trainer.accelerator=cpu")
    assert (code, err) == (0, "")
    assert out.count("Each client:") == 1
    last = pd.read_csv(run_of(folder) / "clients.csv").query("round == @ROUNDS and split == 'test'")
    pd.testing.assert_frame_equal(
        pd.read_csv(run_of(folder) / "test.csv"), last.reset_index(drop=True), check_dtype=False, rtol=1e-4
    )


@pytest.mark.parametrize(("rank", "start"), [(0, tasks), (1, lambda *words: [pfl(*words)])])
def test_a_kill_of_one_process_ends_all_and_leaves_a_good_checkpoint(
    rank, start, straight, in_an_empty_folder, tmp_path
):
    kill = ending("Signalled", rank=rank, rounds=3, number=signal.SIGKILL)
    ended = start(tmp_path, *FIT, TWO, *NO_FIGURES, *kill)
    assert 0 not in [code for code, *_ in ended]
    (line,) = "".join(err for *_, err in ended).splitlines()
    assert re.search("another process of this run has ended, or its machine does not answer \\([A-Z]", line)
    assert line.endswith("; add --ckpt_path last to the command to continue")
    main([*FIT, *NO_FIGURES, "--ckpt_path=last", "--trainer.enable_progress_bar=false"])
    assert_same(run_of(tmp_path), straight)


def test_an_error_in_one_process_ends_all_and_is_said(tmp_path):
    code, _, err = pfl(tmp_path, *FIT, TWO, *NO_FIGURES, *ending("Failing", rank=1, rounds=3))
    assert code != 0
    assert "pfl: error: rank 1: data.root: this disk is broken\n" in err


def test_torchrun_starts_a_run(straight, tmp_path):
    launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "pfl_lightning"]
    code, out, err = by_a_shell(tmp_path, *launcher, *FIT, TWO, *NO_FIGURES)
    assert code == 0, err
    assert out.count("Run folder:") == 1
    assert_same(run_of(tmp_path), straight)
    assert os.listdir(tmp_path / "runs" / "FedRep-Digits") == ["version_0"]


def test_slurm_starts_a_run_and_its_signal_stops_it(tmp_path):
    stop = ending("Signalled", rank=1, rounds=3, number=signal.SIGUSR1)
    saved = "pfl: saved round 4; add --ckpt_path last to the command to continue\n"
    assert tasks(tmp_path, *FIT, TWO, *NO_FIGURES, *stop) == [(138, saved), (138, "")]
