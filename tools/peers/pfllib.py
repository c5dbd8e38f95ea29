"""PFLlib's own command beside ours: FedAvg of its CNN on Fashion-MNIST, with all 20 clients in every round.

Both have the same clients, but each draws its own first weights and batches, so that weights cannot be compared, and
test accuracies are. PFLlib leaves out a client's last batch where it is not full.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import lightning.pytorch as pl
import numpy as np
import torch
from benchmarks import timing
from benchmarks.device import MEBIBYTE
from benchmarks.loops import held_by
from benchmarks.timing import Record
from reproduction.runs import CONFIGS, data_options, newest, over_all_samples, split_data

from peers.environments import TORCH, TORCHVISION, Peer, PeerError, environment, last_line
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.report import read_run

TRACK = "pfllib-cnn"
DATA = "fashion_mnist"
RATE = 0.005  # PFLlib's
ROUNDS = 4  # the first is not counted
OTHERS = ("numpy", "scikit-learn", "h5py", "cvxpy", "calmsize", "matplotlib")
PEER = Peer("pfllib.py", (TORCH, TORCHVISION, *OTHERS), (3, 11))
SECONDS, ACCURACY = re.compile(r"time cost [- ]*([\d.]+)"), re.compile(r"Averaged Test Accuracy: ([\d.]+)")


class Outcome(NamedTuple):
    """What a command has done.

    Attributes:
        seconds: Of each round that counts.
        accuracy: Share of correct predictions among all test samples after all rounds.
        peak: The most memory that it has held, in bytes.
    """

    seconds: list[float]
    accuracy: float
    peak: int


class Seconds(pl.Callback):
    """Prints what each round but the first has taken, as PFLlib does."""

    def __init__(self) -> None:
        self.ended = 0.0

    def on_train_batch_end(self, *_: Any) -> None:
        """From one round's end to the next one's."""
        now = time.perf_counter()
        if self.ended:
            print("time cost", now - self.ended)
        self.ended = now


def measure_pfllib(checkout: Path, data_root: Path, root: Path, repeats: int, threads: int) -> list[Record]:
    """A record of PFLlib's command, and one of ours.

    Args:
        checkout: A checkout of PFLlib.
        data_root: Folder with a folder of files for each data set.
        root: Folder of the environments; PFLlib's is built if it is missing.
        repeats: How often each command is run, in turns.
        threads: Threads of torch.

    Raises:
        PeerError: If a command fails.
    """
    interpreter = environment(PEER, root)
    options = [f"--config={CONFIGS}/papers/pfllib/{DATA}.yaml", *data_options(data_root, DATA)]
    found: dict[str, list[Outcome]] = {"PFLlib": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        copytree(checkout / "system", place / "system")  # it reads ../dataset
        lay_out(split_data(options), place / "dataset" / "FashionMNIST")
        for turn in range(repeats):
            found["PFLlib"].append(theirs(interpreter, place / "system", threads))
            found["ours"].append(ours(options, place / f"ours_{turn}", threads))
    plain = [statistics.median(outcome.seconds) for outcome in found["PFLlib"]]
    return [record(name, outcomes, plain) for name, outcomes in found.items()]


def record(name: str, outcomes: Sequence[Outcome], plain: Sequence[float]) -> Record:
    """What was measured of a command; the ratio is to PFLlib's seconds."""
    facts = {"accuracy": statistics.mean(outcome.accuracy for outcome in outcomes)}
    facts["peak_mebibytes"] = statistics.median(outcome.peak for outcome in outcomes) / MEBIBYTE
    seconds = [statistics.median(outcome.seconds) for outcome in outcomes]
    return timing.record(TRACK, name, seconds, list(plain)) | facts


def lay_out(data: FederatedDataModule, folder: Path) -> None:
    """Write the clients in PFLlib's files: ``train/0.npz`` and so on."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        table = data.tables[split]
        for client in range(len(table)):
            inputs, targets = held_by(table.examples(torch.tensor([client])), 0)
            held = np.array({"x": inputs.numpy(), "y": targets.numpy()}, dtype=object)
            np.savez_compressed(folder / split / f"{client}.npz", data=held)


def theirs(interpreter: Path, system: Path, threads: int) -> Outcome:
    """Run PFLlib's command; it evaluates before its first round and before one more, which are not counted."""
    options = f"-data FashionMNIST -m CNN -algo FedAvg -lr {RATE} -gr {ROUNDS} -eg {ROUNDS} -dev cpu"
    text, peak = finished([str(interpreter), "main.py", *options.split()], system, threads, {"PYTHONPATH": ""})
    seconds, accuracies = SECONDS.findall(text), ACCURACY.findall(text)
    return Outcome([float(each) for each in seconds[1:ROUNDS]], float(accuracies[-1]), peak)


def ours(options: Sequence[str], folder: Path, threads: int) -> Outcome:
    """Run ``pfl fit``."""
    tools = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    run = ["--config=methods/fedavg", f"--model.lr={RATE}", f"--trainer.max_steps={ROUNDS}"]
    run += [f"--trainer.val_check_interval={ROUNDS}", "--trainer.callbacks+=peers.pfllib.Seconds"]
    command = [sys.executable, "-m", "pfl_lightning", "fit", *options, *run, f"--trainer.default_root_dir={folder}"]
    text, peak = finished(command, folder.parent, threads, {"PYTHONPATH": tools})
    accuracy = over_all_samples(read_run(newest(folder)), "test", "global")[-1]
    return Outcome([float(each) for each in SECONDS.findall(text)], accuracy, peak)


def finished(command: Sequence[str], folder: Path, threads: int, environ: Mapping[str, str]) -> tuple[str, int]:
    """Run a command; what it printed, and the most memory that it held, in bytes.

    Raises:
        PeerError: If it fails.
    """
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), **environ}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode:
        raise PeerError(last_line(text) or f"exit status {process.returncode}")
    return text, usage.ru_maxrss * 1024
