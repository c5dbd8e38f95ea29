"""A run that is killed before any of its file operations, and then continued, ends with the files of one that was not.

A killed process leaves the files as they are at that moment. So one run is enough: before each of its operations its
folder is copied, and from each copy that differs from the one before it a run is continued.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from pfl_lightning.runs.experiment import Experiment

WRITES = os.O_WRONLY | os.O_RDWR
CHANGES = ("os.", "shutil.")  # os.rename, os.remove, os.mkdir, os.truncate, os.link, ...
LOOKS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr", "os.putenv", "os.unsetenv")
RUN = [
    *("--model=FedRep", "--model.network=MLP", "--model.network.hidden=[4]", "--data.num_clients=4"),
    *("--model.head_epochs=1", "--model.eval_epochs=0", "--data.max_samples=100"),  # the files are what matters
    *("--trainer.max_steps=3", "--trainer.val_check_interval=2"),
    "--checkpoint.every=1",  # also where nothing is evaluated
]
NAMES = [f"checkpoints/{name}.ckpt" for name in ("last", "previous", "best")]


class Camera:
    """Copies a folder before each file operation, if it has changed since the last copy.

    TensorBoard's files are not looked at: a thread of their own writes them at any time.
    """

    def __init__(self) -> None:
        self.watched: Path | None = None

    def watch(self, folder: Path, copies: Path) -> None:
        folder.mkdir()
        self.copies, self.seen, self.operations, self.watched = copies, set(), 0, folder

    def __call__(self, event: str, arguments: tuple) -> None:
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if self.watched is None or not (opened or (event.startswith(CHANGES) and event not in LOOKS)):
            return
        folder, self.watched = self.watched, None
        self.operations += 1
        if (state := tuple(files(folder))) not in self.seen:
            self.seen.add(state)
            shutil.copytree(folder, self.copies / f"{self.operations:03}")
        self.watched = folder


def files(folder: Path) -> list[tuple[str, bytes]]:
    """Names and digests of all files but TensorBoard's."""
    paths = (path for path in sorted(folder.rglob("*")) if not path.name.startswith("events."))
    return [
        (str(path.relative_to(folder)), hashlib.md5(path.read_bytes()).digest() if path.is_file() else b"")
        for path in paths
    ]


@pytest.fixture(scope="session")
def camera():
    camera = Camera()
    sys.addaudithook(camera)  # for the rest of the process: there is no way to take it off
    return camera


def checkpoint(path: Path) -> dict:
    """All entries but Lightning's counters, of which those that matter count the same rounds."""
    content = torch.load(path, weights_only=True)
    loop, rounds = content.pop("loops")["fit_loop"], content["global_step"]
    assert content["accounting"]["clock"]["rounds"] == rounds
    assert loop["state_dict"]["combined_loader"][0]["done"] == rounds
    assert loop["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"] == rounds
    return content


def differences(found, wanted, key: str = "") -> list[str]:
    """Keys under which two checkpoints differ."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        names = found.keys() | wanted.keys()
        return [d for name in names for d in differences(found.get(name), wanted.get(name), f"{key}.{name}")]
    if isinstance(wanted, torch.Tensor):
        return [] if isinstance(found, torch.Tensor) and torch.equal(found, wanted) else [key]
    return [] if found == wanted else [f"{key}: {found}, not {wanted}"]


def continued(folder: Path, experiment: Experiment, monkeypatch) -> Path:
    """Continue the newest run, unless it has ended, or start anew where there is no checkpoint; the run's folder."""
    monkeypatch.chdir(folder)
    started = list(folder.rglob("last.ckpt")) or list(folder.rglob("previous.ckpt"))
    if 3 not in [torch.load(path, weights_only=True)["global_step"] for path in folder.rglob("last.ckpt")]:
        experiment.fit(resume=bool(started))
    return max(folder.glob("runs/*/version_*"))


@pytest.mark.slow
def test_a_kill_before_any_file_operation_changes_nothing(camera, tmp_path, monkeypatch):
    watched, copies = tmp_path / "watched", tmp_path / "copies"
    experiment = Experiment.from_settings(*RUN)  # what ``pfl fit`` runs, too
    camera.watch(watched, copies)
    monkeypatch.chdir(watched)
    experiment.fit()
    camera.watched = None
    straight = max(watched.glob("runs/*/version_*"))
    wanted = {name: checkpoint(straight / name) for name in NAMES}
    wrong = []
    for copy in sorted(copies.iterdir()):
        run = continued(copy, experiment, monkeypatch)
        for name in NAMES:
            wrong += [f"{copy.name}: {name}{place}" for place in differences(checkpoint(run / name), wanted[name])]
        for name in ("metrics.csv", "clients.csv"):
            wrong += [f"{copy.name}: {name}"] if (run / name).read_text() != (straight / name).read_text() else []
        wrong += [f"{copy.name}: {path.name} left" for path in run.rglob("*.tmp")]
    assert wrong == []
    assert len(list(copies.iterdir())) > 10
