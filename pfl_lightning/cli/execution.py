"""Executes planned runs, each in a process of its own or as a job of submitit."""

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from threading import Lock
from time import monotonic
from typing import Any

from pfl_lightning.cli.console import show
from pfl_lightning.cli.planning import PlannedRun, parse
from pfl_lightning.errors import PflError
from pfl_lightning.runs.resume import Resume, has_stopped

# with the file of its stderr next; a job that calls a function of this package would import torch only to wait
COMMAND = ["sh", "-c", 'exec "$@" > /dev/null 2> "$0"']


class Job:
    """A command as submitit runs it, with the methods of a process.

    Args:
        executor: The submitit executor.
        command: The command.
    """

    def __init__(self, executor: Any, command: list[str]) -> None:
        self.job = executor.submit(subprocess.call, command)

    def send_signal(self, number: int) -> None:
        """Cancel the job, whatever the signal."""
        self.job.cancel()

    def wait(self) -> int:
        """Wait for the exit code; raise a PflError if the job ended without one."""
        try:
            return int(self.job.result())
        except RuntimeError as error:  # submitit's
            raise PflError(f"job {self.job.job_id} ended before its run; see {self.job.paths.stderr}") from error


class Sweep:
    """Runs processes outside the terminal's process group, and forwards each signal to them once.

    Args:
        jobs: Number of runs at the same time.
        executor: What submits the runs, of submitit; None to run them on this machine.

    Attributes:
        signal: The last signal that asked to stop; 0 if there was none.
        waiting: Number of runs that are still to start, where it is known.
        seconds: What each run took that was made here from its first round.
        folders: Which folders of runs are in use.
    """

    def __init__(self, jobs: int, executor: Any = None) -> None:
        self.jobs = jobs
        self.executor = executor
        self.processes: list[subprocess.Popen[bytes] | Job] = []
        self.signal = 0
        self.waiting = 0
        self.seconds: list[float] = []
        self.folders: dict[Path, Lock] = defaultdict(Lock)

    def pass_on(self, number: int, *_: Any) -> None:
        """Let the processes save and stop; a second signal stops them at once."""
        self.signal = number
        for process in self.processes:
            process.send_signal(number)

    @contextmanager
    def forwarding(self) -> Iterator[None]:
        """Pass on the signals that ask to stop."""
        before = {number: signal.signal(number, self.pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def execute_all(self, runs: Iterable[PlannedRun]) -> list[Path | None]:
        """Execute runs; see ``execute``."""
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(self.execute, runs))

    def execute(self, run: PlannedRun) -> Path | None:
        """Start or resume a run unless it is finished, and report on it; return the folder of a finished run."""
        with self.folders[run.folder]:  # trials of the same settings have one
            if self.signal:
                return None
            self.waiting -= 1
            try:
                folder = self.complete(run)
            except (PflError, OSError) as error:
                show(f"{run.name}: {'stopped' if self.signal else f'failed: {error}'}")
                return None
            show(f"{run.name}: finished{self.time_left()}")
            return folder

    def complete(self, run: PlannedRun) -> Path | None:
        """Start or resume a run unless it is finished, and return its folder.

        Raises:
            PflError: If it does not do its rounds.
        """
        rounds = run.settings["trainer"]["max_steps"]
        resume = run.resume()
        if resume and is_finished(resume, rounds):
            run.refuse_too_late(resume)
            return resume.folder
        show(f"{run.name}: starts round {rounds_done(resume) + 1} of {rounds}")
        began = monotonic()
        self.fit(run, [f"--ckpt_path={resume.folder}"] if resume else [])
        if not resume:
            self.seconds.append(monotonic() - began)
        resume = run.resume()
        if not is_finished(resume, rounds):
            raise PflError(f"it ended after round {rounds_done(resume)} of {rounds}")
        return resume and resume.folder

    def time_left(self) -> str:
        """What the runs that are still to start will take, if each takes as long as those that were made here."""
        if self.waiting <= 0 or not self.seconds:
            return ""
        seconds = mean(self.seconds) * self.waiting / self.jobs
        return f"; {self.waiting} to start, which take about {timedelta(seconds=round(seconds))}"

    def fit(self, run: PlannedRun, args: list[str]) -> None:
        """Run ``pfl fit`` in a process; if it fails, raise a PflError with its last line on stderr, or its signal."""
        run.folder.mkdir(parents=True, exist_ok=True)
        stderr = run.folder / "stderr.txt"
        command = [*COMMAND, str(stderr), sys.executable, "-m", "pfl_lightning", "fit", *run.args, *args]
        process = Job(self.executor, command) if self.executor else subprocess.Popen(command, start_new_session=True)
        self.processes.append(process)
        if self.signal:  # it came while the process started
            process.send_signal(self.signal)
        if code := process.wait():
            if code < 0:  # such as SIGKILL, if memory is short; the last line may be any
                raise PflError(f"killed by {signal.Signals(-code).name}")
            text = stderr.read_text(errors="replace").strip() or f"exit code {code}"
            raise PflError(text.splitlines()[-1].removeprefix("pfl: error: "))


def executor_of(words: Sequence[str], folder: Path) -> Any:
    """What submits runs as jobs of submitit.

    Args:
        words: Parameters of the jobs, such as ``timeout_min=60``.
        folder: For submitit's files.

    Raises:
        PflError: If submitit is missing, or has no such parameter, or one has no value.
    """
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")  # or its import closes all handlers of logs
    try:
        from submitit import AutoExecutor
    except ImportError as error:
        raise PflError(f'submit: needs pip install "pfl_lightning[cluster]" ({error})') from error
    parameters = {}
    for word in words:
        key, _, text = word.partition("=")
        parameters[key] = parse(text)
        if parameters[key] is None:
            allowed = "a parameter and its value: timeout_min=60"
            raise PflError(f"submit: {word} is not possible; allowed: {allowed}")
    try:
        with TemporaryDirectory() as trial:  # a refused command leaves nothing behind
            AutoExecutor(trial).update_parameters(**parameters)
    except (AssertionError, NameError, ValueError) as error:
        raise PflError(f"submit: {str(error).splitlines()[0]}") from error
    executor = AutoExecutor(folder)
    executor.update_parameters(**parameters)
    return executor


def rounds_done(resume: Resume | None) -> int:
    """Rounds of the newest checkpoint of a run; 0 if it has none."""
    return resume.content["global_step"] if resume else 0


def is_finished(resume: Resume | None, rounds: int) -> bool:
    """Whether a run has done its rounds, or was to end before."""
    return resume is not None and (rounds_done(resume) >= rounds or has_stopped(resume.content))
