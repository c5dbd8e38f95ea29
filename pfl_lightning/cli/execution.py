"""Executes planned runs, each in a process of its own or as a job of submitit."""

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from math import nan
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock
from time import monotonic, sleep
from typing import Any, BinaryIO

from filelock import lock_descriptor

from pfl_lightning.cli.console import show
from pfl_lightning.cli.launcher import STOPPING, LaunchedRun, Launcher
from pfl_lightning.cli.planning import PlannedRun, parse
from pfl_lightning.errors import PflError
from pfl_lightning.report import final_score
from pfl_lightning.runs.resume import Resume, has_stopped, other_code
from pfl_lightning.settings.messages import TRACEBACK_HINT

# with the file of its stderr next; a job that calls a function of this package would import torch only to wait
JOB = ["sh", "-c", 'exec "$@" > /dev/null 2> "$0"']
STDERR = "stderr.txt"
SECONDS = "seconds.txt"
ERROR = "pfl: error: "
FAILED = 1  # exit codes, see ``running.run``
WRONG_COMMAND = 2
POLL_SECONDS = 0.2


class Job:
    """A command as submitit runs it, with the methods of a process.

    Args:
        executor: The submitit executor.
        command: The command.
        folder: Its working folder.
    """

    def __init__(self, executor: Any, command: list[str], folder: Path) -> None:
        self.job = executor.submit(subprocess.call, command, cwd=folder)

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
        score: What to print of a finished run; empty for nothing. Default: its final test score.

    Attributes:
        folder: The working folder of the runs; that of this process is another one while a thread parses a file.
        signal: The last signal that asked to stop; 0 if there was none.
        waiting: Number of runs that are still to start, where it is known.
        seconds: What each run took that was made here from its first round.
        slots: Free places for runs: a suite executes several lists of them at the same time.
        folders: Which folders of runs are in use.
        refused: Folders of runs that failed by their settings: these were refused, or the run diverged.
    """

    def __init__(self, jobs: int, executor: Any = None, score: Callable[[PlannedRun], str] | None = None) -> None:
        self.jobs = jobs
        self.executor = executor
        self.score = score or test_score
        self.processes: list[LaunchedRun | Job] = []
        self.launchers: list[Launcher] = []
        self.folder = Path.cwd()
        self.signal = 0
        self.waiting = 0
        self.seconds: list[float] = []
        self.slots = BoundedSemaphore(jobs)
        self.folders: dict[Path, Lock] = defaultdict(Lock)
        self.refused: set[Path] = set()

    def pass_on(self, number: int, *_: Any) -> None:
        """Let the processes save and stop; a second signal stops them at once."""
        self.signal = number
        for process in self.processes:
            process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)  # with which a run saves

    @contextmanager
    def forwarding(self) -> Iterator[None]:
        """Pass on the signals that ask to stop, unless they are ignored, as SIGHUP is under nohup; end launchers."""
        heeded = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self.pass_on) for number in heeded}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            while self.launchers:
                self.launchers.pop().end()

    def execute_all(self, runs: Iterable[PlannedRun]) -> list[Path | None]:
        """Execute runs; see ``execute``."""
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(self.execute, runs))

    def execute(self, run: PlannedRun) -> Path | None:
        """Start or resume a run unless it is finished, and report on it; return the folder of a finished run."""
        with self.folders[run.folder], self.slots:  # trials of the same settings have one folder
            if self.signal:
                return None
            self.waiting -= 1
            try:
                with self.claimed(run) as stderr:
                    folder = self.complete(run, stderr)
            except (PflError, OSError) as error:
                show(f"{run.name}: {'stopped' if self.signal else f'failed: {error}'}")
                return None
            words = filter(None, (f"{run.name}: finished", self.score(run)))
            show(f"{', '.join(words)}{self.time_left()}")
            return folder

    @contextmanager
    def claimed(self, run: PlannedRun) -> Iterator[BinaryIO]:
        """The file of a run's stderr, locked against other sweeps.

        The run inherits the lock. So if this process is killed, another sweep waits until the run has ended.

        Raises:
            PflError: If a signal ends the wait.
        """
        run.folder.mkdir(parents=True, exist_ok=True)
        with (run.folder / STDERR).open("ab") as stderr:
            with suppress(OSError):  # a file system without locks
                if not lock_descriptor(stderr.fileno(), blocking=False):
                    show(f"{run.name}: waits for another sweep in '{run.folder}'")
                    while not self.signal and not lock_descriptor(stderr.fileno(), blocking=False):
                        sleep(POLL_SECONDS)
            if self.signal:
                raise PflError("stopped")
            yield stderr

    def complete(self, run: PlannedRun, stderr: BinaryIO) -> Path | None:
        """Start or resume a run unless it is finished, and return its folder.

        Args:
            run: The run.
            stderr: The file of its stderr.

        Raises:
            PflError: If it does not do its rounds.
        """
        rounds = run.settings["trainer"]["max_steps"]
        resume = run.resume()
        for module in other_code(resume.folder, run.settings) if resume and resume.folder else ():
            show(f"{run.name}: {module} has changed since it was trained; to train it again, remove '{run.folder}'")
        if resume and is_finished(resume, rounds):
            run.refuse_too_late(resume)
            return resume.folder
        show(f"{run.name}: starts round {rounds_done(resume) + 1} of {rounds}")
        before = seconds_of(run.folder) if resume else 0.0
        began = monotonic()
        try:
            self.fit(run, [f"--ckpt_path={resume.folder}"] if resume else [], stderr)
        finally:
            seconds = monotonic() - began
            (run.folder / SECONDS).write_text(f"{before + seconds:.2f}")
        if not resume:
            self.seconds.append(seconds)
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

    def fit(self, run: PlannedRun, args: list[str], stderr: BinaryIO) -> None:
        """Run ``pfl fit`` in a process; if it fails, raise a PflError with its last line on stderr, or its signal."""
        stderr.truncate(0)
        words = ["fit", *run.args, *args]
        path = Path(stderr.name)
        if self.executor:
            command = [*JOB, str(path), sys.executable, "-m", "pfl_lightning", *words]
            code = self.exit_code(Job(self.executor, command, self.folder))
        else:
            with self.launcher() as launcher:
                code = self.exit_code(launcher.start(words, stderr))
        if code < 0:  # such as SIGKILL, if memory is short; the last line may be any
            raise PflError(f"killed by {signal.Signals(-code).name}")
        if code:
            line = last_line(run.folder) or f"exit code {code}, see '{path}'"
            if is_refusal(code, line):
                self.refused.add(run.folder)
            raise PflError(line.removeprefix(ERROR))

    @contextmanager
    def launcher(self) -> Iterator[Launcher]:
        """A launcher that starts no other run; it is kept for the next one, unless it was killed."""
        try:
            launcher = self.launchers.pop()
        except IndexError:
            launcher = Launcher(self.folder)
        yield launcher
        if launcher.process.poll() is None:
            self.launchers.append(launcher)

    def exit_code(self, process: LaunchedRun | Job) -> int:
        """Wait for a process, which gets the signals that are passed on."""
        self.processes.append(process)
        if self.signal:  # it came while the process started
            process.send_signal(self.signal)
        return process.wait()


def test_score(run: PlannedRun) -> str:
    """The mean test score of a finished run at its last evaluation, of the first evaluated model."""
    resume = run.resume()
    with suppress(PflError):  # a run without test samples, or without the table
        return f"test {final_score(resume.folder)}" if resume and resume.folder else ""
    return ""


def last_line(folder: Path) -> str:
    """The last line that a run of a sweep has written to stderr; empty if there is none.

    Args:
        folder: The folder that the sweep has given to it.
    """
    lines = (folder / STDERR).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def seconds_of(folder: Path) -> float:
    """What a run of a sweep has taken so far, with its start, in all its parts; nan if that was not noted.

    Args:
        folder: The folder that the sweep has given to it.
    """
    try:
        return float((folder / SECONDS).read_text())
    except (OSError, ValueError):
        return nan


def is_refusal(code: int, line: str) -> bool:
    """Whether a run failed by its settings, and would fail again: they were refused, or it diverged.

    Args:
        code: Its exit code.
        line: Its last line on stderr; those about bugs and about what the system refused have a hint at their end.
    """
    return code == WRONG_COMMAND or (code == FAILED and line.startswith(ERROR) and not line.endswith(TRACEBACK_HINT))


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
        raise PflError(f'submit: needs uv pip install "pfl_lightning[cluster]" ({error})') from error
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
