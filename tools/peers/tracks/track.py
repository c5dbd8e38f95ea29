"""A library's own command and ``pfl fit`` with the same work, measured in turns.

Each draws its own first weights and batches, so that weights cannot be compared, and test accuracies are.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import lightning.pytorch as pl
from benchmarks import timing
from benchmarks.device import MEBIBYTE
from benchmarks.timing import Record
from reproduction.measures import last
from reproduction.runs import newest

from peers.environments import Peer, PeerError, environment, execute, last_line
from pfl_lightning.report import Curve

PRINTED = "seconds of a round:"
PATIENCE = 24 * 3600  # seconds, for one command


class Outcome(NamedTuple):
    """What a command has done.

    Attributes:
        seconds: Of each round that counts; never the first.
        accuracy: Share of correct predictions among all test samples after all rounds.
        peak: The most memory that one of its processes has held, in bytes.
        whole: Seconds of the command, with its start and all evaluations.
    """

    seconds: list[float]
    accuracy: float
    peak: int
    whole: float


@dataclass(frozen=True)
class Track:
    """A command of another library, and the options of ``pfl fit`` for the same work.

    Attributes:
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

    def measure(
        self, name: str, checkout: Path, data_root: Path, root: Path, repeats: int, threads: int
    ) -> list[Record]:
        """A record of the library's command, and one of ours.

        Args:
            name: What tables call the track.
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
        with TemporaryDirectory() as folder:
            place = Path(folder)
            begin = self.lay_out(checkout, files, place)
            turns = [
                (self.run_library(interpreter, begin, threads), self.run_ours(options, place / f"ours_{turn}", threads))
                for turn in range(repeats)
            ]
        plain = [statistics.median(outcome.seconds) for outcome, _ in turns]
        libraries = zip((self.library, "ours"), zip(*turns, strict=True), strict=True)
        return [record(name, library, outcomes, plain) for library, outcomes in libraries]

    def run_library(self, interpreter: Path, folder: Path, threads: int) -> Outcome:
        """Run the library's command in a folder.

        Raises:
            PeerError: If it fails, or prints no numbers.
        """
        environ = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": ".", **self.environ}
        began = time.perf_counter()
        text, peak = execute([interpreter, *self.words.split()], PATIENCE, folder, environ)
        whole = time.perf_counter() - began
        try:
            return Outcome(*self.read(text), peak, whole)
        except (ValueError, IndexError) as error:
            raise PeerError(f"printed no numbers; its last line: {last_line(text)}") from error

    def run_ours(self, options: Sequence[str], folder: Path, threads: int) -> Outcome:
        """Run ``pfl fit`` with a folder for its runs."""
        tools = Path(__file__).parents[2]
        paths = [tools, tools.parent / "tests", *filter(None, (os.environ.get("PYTHONPATH"),))]
        run = ["--config=methods/fedavg", f"--trainer.max_steps={self.rounds}", "--model.eval_epochs=0"]
        run += ["--trainer.callbacks+=peers.tracks.track.Seconds", f"--trainer.default_root_dir={folder}"]
        command = [sys.executable, "-m", "pfl_lightning", "fit", options[0], *run, *options[1:]]
        environ = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(map(str, paths))}
        began = time.perf_counter()
        text, peak = execute(command, PATIENCE, folder.parent, environ)
        whole = time.perf_counter() - began
        seconds = [float(line.removeprefix(PRINTED)) for line in text.splitlines() if line.startswith(PRINTED)]
        finished = newest(folder)
        if finished is None:
            raise PeerError(f"has no results in '{folder}'")
        return Outcome(seconds, last(Curve([finished], "global")) / 100, peak, whole)


def record(track: str, name: str, outcomes: Sequence[Outcome], plain: Sequence[float]) -> Record:
    """What was measured of a command; the ratio is to the library's seconds."""
    seconds = [statistics.median(outcome.seconds) for outcome in outcomes]
    return timing.record(track, name, seconds, list(plain)) | {
        "accuracy": statistics.mean(outcome.accuracy for outcome in outcomes),
        "peak_mebibytes": statistics.median(outcome.peak for outcome in outcomes) / MEBIBYTE,
        "whole_seconds": statistics.median(outcome.whole for outcome in outcomes),
    }


class Seconds(pl.Callback):
    """Prints what each round but the first has taken, evaluations before it included."""

    def __init__(self) -> None:
        self.ended = 0.0

    def on_train_batch_end(self, *_: Any) -> None:
        """From one round's end to the next one's."""
        end = time.perf_counter()
        if self.ended:
            print(f"\n{PRINTED}", end - self.ended)
        self.ended = end
