"""A library's own command and ``pfl fit`` with the same work, measured in turns.

Each draws its own first weights and batches, so that weights cannot be compared, and test accuracies are.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
from benchmarks import timing
from benchmarks.device import MEBIBYTE
from benchmarks.timing import Record
from reproduction.runs import newest, over_all_samples

from peers.environments import Peer, PeerError, environment, last_line
from pfl_lightning.report import read_run

SAID = "seconds of a round:"


class Outcome(NamedTuple):
    """What a command has done.

    Attributes:
        seconds: Of each round that counts; never the first.
        accuracy: Share of correct predictions among all test samples after all rounds.
        peak: The most memory that one of its processes has held, in bytes.
    """

    seconds: list[float]
    accuracy: float
    peak: int


@dataclass(frozen=True)
class Track:
    """A command of another library, and the options of ``pfl fit`` for the same work.

    Attributes:
        name: What tables call the track.
        library: What tables call the library.
        data: Name of the data set's folder.
        entry: A file of the library's checkout.
        peer: Its environment.
        lay_out: Takes the checkout, the folder of our files of the data set, and an empty folder; writes there what the
            command needs, and returns the folder in which it runs.
        words: The command after its interpreter.
        read: Finds the seconds and the accuracy of its ``Outcome`` in what it has printed.
        rounds: How many rounds both run.
        options: Options of ``pfl fit`` beside those of FedAvg; the first is a file of settings.
        environ: Variables of the library's environment.
    """

    name: str
    library: str
    data: str
    entry: str
    peer: Peer
    lay_out: Callable[[Path, Path, Path], Path]
    words: str
    read: Callable[[str], tuple[list[float], float]]
    rounds: int
    options: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)

    def measure(self, checkout: Path, data_root: Path, root: Path, repeats: int, threads: int) -> list[Record]:
        """A record of the library's command, and one of ours.

        Args:
            checkout: A checkout of the library.
            data_root: Folder with a folder of files for each data set.
            root: Folder of the environments; the library's is built if it is missing.
            repeats: How often each command is run, in turns.
            threads: Threads of torch.

        Raises:
            PeerError: If a command fails.
        """
        interpreter = environment(self.peer, root)
        files = data_root / self.data
        options = [*self.options, f"--data.root={files}"]
        found: dict[str, list[Outcome]] = {self.library: [], "ours": []}
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            begin = self.lay_out(checkout, files, place)
            for turn in range(repeats):
                found[self.library].append(self.theirs(interpreter, begin, threads))
                found["ours"].append(self.ours(options, place / f"ours_{turn}", threads))
        plain = [statistics.median(outcome.seconds) for outcome in found[self.library]]
        return [self.record(name, outcomes, plain) for name, outcomes in found.items()]

    def theirs(self, interpreter: Path, folder: Path, threads: int) -> Outcome:
        """Run the library's command in a folder.

        Raises:
            PeerError: If it fails, or prints no numbers.
        """
        text, peak = finished(
            [str(interpreter), *self.words.split()], folder, threads, {"PYTHONPATH": ".", **self.environ}
        )
        try:
            return Outcome(*self.read(text), peak)
        except (ValueError, IndexError) as error:
            raise PeerError(f"printed no numbers; its last line: {last_line(text)}") from error

    def ours(self, options: Sequence[str], folder: Path, threads: int) -> Outcome:
        """Run ``pfl fit`` with a folder for its runs."""
        tools = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        run = ["--config=methods/fedavg", f"--trainer.max_steps={self.rounds}", "--model.eval_epochs=0"]
        run += ["--trainer.callbacks+=peers.tracks.track.Seconds", f"--trainer.default_root_dir={folder}"]
        command = [sys.executable, "-m", "pfl_lightning", "fit", options[0], *run, *options[1:]]
        text, peak = finished(command, folder.parent, threads, {"PYTHONPATH": tools})
        seconds = [float(line.removeprefix(SAID)) for line in text.splitlines() if line.startswith(SAID)]
        return Outcome(seconds, over_all_samples(read_run(newest(folder)), "test", "global")[-1], peak)

    def record(self, name: str, outcomes: Sequence[Outcome], plain: Sequence[float]) -> Record:
        """What was measured of a command; the ratio is to the library's seconds."""
        facts = {"accuracy": statistics.mean(outcome.accuracy for outcome in outcomes)}
        facts["peak_mebibytes"] = statistics.median(outcome.peak for outcome in outcomes) / MEBIBYTE
        seconds = [statistics.median(outcome.seconds) for outcome in outcomes]
        return timing.record(self.name, name, seconds, list(plain)) | facts


class Seconds(pl.Callback):
    """Prints what each round but the first has taken, evaluations before it included."""

    def __init__(self) -> None:
        self.ended = 0.0

    def on_train_batch_end(self, *_: Any) -> None:
        """From one round's end to the next one's."""
        now = time.perf_counter()
        if self.ended:
            print(f"\n{SAID}", now - self.ended)
        self.ended = now


def finished(command: Sequence[str], folder: Path, threads: int, environ: Mapping[str, str]) -> tuple[str, int]:
    """Run a command; what it printed, and the most memory that one of its processes held, in bytes.

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
