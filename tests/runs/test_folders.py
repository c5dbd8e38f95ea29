import errno
import fcntl
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from pfl_lightning.callbacks import PercentileErrors
from pfl_lightning.data import Digits
from pfl_lightning.errors import MachineError, PflError
from pfl_lightning.methods import FedAvg
from pfl_lightning.models import MLP
from pfl_lightning.runs.folders import RunFolder, new_folder


def no_flock(*_):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))  # as on Lustre, and some of FUSE


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("flock", [fcntl.flock, no_flock])
def test_a_process_that_is_killed_no_longer_holds_its_folder(flock, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", flock)

    def hold(locked):
        with RunFolder(tmp_path):
            locked.set()
            time.sleep(600)

    context = multiprocessing.get_context("fork")
    process = context.Process(target=hold, args=(locked := context.Event(),))
    process.start()
    assert locked.wait(60)
    with pytest.raises(PflError, match=f"is in use by process {process.pid}; allowed: one"), RunFolder(tmp_path):
        pass
    process.kill()
    process.join()
    for _ in range(2):
        with RunFolder(tmp_path):
            assert (tmp_path / ".lock").read_text().splitlines()[0] == str(os.getpid())


def test_a_disk_without_room_for_a_lock_leaves_no_folder(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    line = r"version_0' cannot be written: No space left on device; allowed: a run folder that can$"
    with pytest.raises(MachineError, match=line), new_folder(tmp_path / "a/b"):
        pass
    assert not list(tmp_path.iterdir())


def test_runs_that_start_at_the_same_moment_have_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_folder(tmp_path / "runs").path, range(40)))
    assert {path.name for path in folders} == {f"version_{number}" for number in range(40)}


@pytest.mark.parametrize(
    ("saved", "others", "left"),
    [
        ([], [], []),
        ([], ["a/b/mine"], ["a", "a/b", "a/b/mine"]),
        (["config.yaml", "checkpoints/.last.tmp"], ["mine"], ["mine"]),
        (["checkpoints/last.ckpt"], [], ["a", "a/b", "a/b/version_0"]),
    ],
)
def test_a_folder_without_a_checkpoint_goes_with_the_empty_ones_above_it(saved, others, left, tmp_path):
    folder = new_folder(tmp_path / "a/b")
    for file in [*(folder.path / name for name in saved), *(tmp_path / name for name in others)]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    with pytest.raises(KeyboardInterrupt), folder:
        raise KeyboardInterrupt
    found = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))]
    assert [path for path in found if not path.startswith("a/b/version_0/")] == left


def test_a_folder_that_was_there_stays_as_it_was(tmp_path):
    (tmp_path / "metrics.csv").write_text("x")
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]
    assert (tmp_path / "metrics.csv").read_text() == "x"


class Elsewhere(Logger):
    """A logger with a folder of its own, like those of services."""

    name, version = "mine", 3

    def __init__(self, save_dir: str | None) -> None:
        super().__init__()
        self.place = save_dir

    @property
    def save_dir(self):
        return self.place

    def log_metrics(self, *args, **kwargs):
        pass

    log_hyperparams = log_metrics


@pytest.mark.parametrize(
    ("logger", "folder"),
    [
        (False, "root"),
        (CSVLogger("logs", "mine"), "logs/mine/version_0"),
        (TensorBoardLogger("~/logs", "mine", "one"), "home/logs/mine/one"),
        ([Elsewhere("."), CSVLogger("logs")], "mine/version_3"),
        (Elsewhere(None), "root/mine/version_3"),
    ],
)
def test_without_the_command_line_a_run_is_where_its_first_logger_is(logger, folder, fit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    method, data = FedAvg(network=partial(MLP, hidden=(4,)), eval_epochs=0), Digits(num_clients=4)
    fit(method, data, 1, "root", callbacks=[PercentileErrors()], logger=logger)
    assert Path(folder, "checkpoints/last.ckpt").is_file()
    assert Path(folder, "clients.csv").is_file() == (logger is not False)
    assert not Path("checkpoints").exists()
    assert not Path("clients.csv").exists()
