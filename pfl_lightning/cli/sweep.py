import os
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from threading import Lock
from time import monotonic
from typing import Any, Protocol

from yaml import YAMLError

from pfl_lightning.bounds import PositiveInt, Seed
from pfl_lightning.cli.console import show
from pfl_lightning.cli.fit import without_alias, without_aliases
from pfl_lightning.cli.planning import PlannedRun, plan
from pfl_lightning.errors import PflError, SettingsError
from pfl_lightning.runs.resume import Resume, expand_path, has_stopped
from pfl_lightning.settings.messages import nearest
from pfl_lightning.settings.parser import SettingsParser, load_settings
from pfl_lightning.settings.shipped_files import config_file


class Process(Protocol):
    """A run elsewhere."""

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the run has ended."""

    def wait(self) -> int:
        """Wait for the exit code; it is negative for a signal that has killed the run."""


Start = Callable[[list[str], Path], Process]


class Sweep:
    """Runs processes outside the terminal's process group, and forwards each signal to them once.

    Args:
        jobs: Number of runs at the same time.
        start: Starts ``pfl`` with some words and a file for its stderr.

    Attributes:
        signal: The last signal that asked to stop; 0 if there was none.
        waiting: Number of runs that are still to start, where it is known.
        seconds: What each run took that was made here from its first round.
        folders: Which folders of runs are in use.
    """

    def __init__(self, jobs: int, start: Start) -> None:
        self.jobs, self.start = jobs, start
        self.processes: list[Process] = []
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
            return self._execute(run)

    def _execute(self, run: PlannedRun) -> Path | None:
        if self.signal:
            return None
        self.waiting -= 1
        rounds = run.settings["trainer"]["max_steps"]
        try:
            resume = run.resume()
            if resume and is_finished(resume, rounds):
                run.refuse_too_late(resume)
            else:
                show(f"{run.name}: starts round {rounds_done(resume) + 1} of {rounds}")
                began, args = monotonic(), [f"--ckpt_path={resume.folder}"] if resume else []
                self.fit(run, args)
                if not args:
                    self.seconds.append(monotonic() - began)
                resume = run.resume()
                if not is_finished(resume, rounds):
                    raise PflError(f"it ended after round {rounds_done(resume)} of {rounds}")
        except (PflError, OSError) as error:
            show(f"{run.name}: {'stopped' if self.signal else f'failed: {error}'}")
            return None
        show(f"{run.name}: finished{self.time_left()}")
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
        said = run.folder / "stderr.txt"
        process = self.start(["fit", *run.args, *args], said)
        self.processes.append(process)
        if self.signal:  # it came while the process started
            process.send_signal(self.signal)
        if code := process.wait():
            if code < 0:  # such as SIGKILL, if memory is short; the last line may be any
                raise PflError(f"killed by {signal.Signals(-code).name}")
            lines = filter(str.strip, said.read_text(errors="replace").splitlines())
            raise PflError([f"exit code {code}", *lines][-1].strip().removeprefix("pfl: error: "))


def start_here(words: list[str], stderr: Path) -> Process:
    """Start ``pfl`` on this machine."""
    with stderr.open("w") as file:
        return subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=file, start_new_session=True)


COMMAND = [sys.executable, "-m", "pfl_lightning"]
# what a job runs, with the file first: a function of this package would import torch only to wait
TO_FILE = ["sh", "-c", 'exec "$@" > /dev/null 2> "$0"']


class Job:
    """``pfl`` as submitit runs it.

    Args:
        executor: The submitit executor.
        words: Its command line.
        said: Where its stderr goes.
    """

    def __init__(self, executor: Any, words: list[str], said: Path) -> None:
        self.job = executor.submit(subprocess.call, [*TO_FILE, str(said), *COMMAND, *words])

    def send_signal(self, number: int) -> None:
        """Cancel the job, whatever the signal."""
        self.job.cancel()

    def wait(self) -> int:
        """Wait for the exit code; raise a PflError if the job ended without one."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            return int(self.job.result())
        except (FailedJobError, UncompletedJobError) as error:
            raise PflError(f"job {self.job.job_id} ended before its run; see {self.job.paths.stderr}") from error


def submitting(words: Sequence[str], folder: Path) -> Start:
    """What starts runs as jobs of submitit.

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
    parameters = dict(map(parameter, words))
    try:
        with TemporaryDirectory() as trial:  # a refused command leaves nothing behind
            AutoExecutor(trial).update_parameters(**parameters)
    except (AssertionError, NameError, ValueError) as error:
        raise PflError(f"submit: {str(error).splitlines()[0]}") from error
    executor = AutoExecutor(folder)
    executor.update_parameters(**parameters)
    return partial(Job, executor)


def parameter(word: str) -> tuple[str, Any]:
    """A parameter of jobs and its value, which is YAML."""
    key, _, text = word.partition("=")
    value = None
    with suppress(YAMLError):
        value = load_settings(text)
    if value is None:
        raise PflError(f"submit: {word} is not possible; allowed: a parameter and its value: timeout_min=60")
    return key, value


def rounds_done(resume: Resume | None) -> int:
    """Rounds of the newest checkpoint of a run; 0 if it has none."""
    return resume.content["global_step"] if resume else 0


def is_finished(resume: Resume | None, rounds: int) -> bool:
    """Whether a run has done its rounds, or was to end before."""
    return resume is not None and (rounds_done(resume) >= rounds or has_stopped(resume.content))


def sweep_command(args: list[str]) -> None:
    """Run ``pfl sweep`` with the arguments that follow it.

    Raises:
        PflError: If they are wrong.
        SystemExit: With code 1 if a run fails, 130 or 143 after a signal.
    """
    split = args.index("--") if "--" in args else len(args)
    parser = sweep_parser()
    options = [word.partition("=")[0] for word in args[:split] if word.startswith("--")]
    if unknown := [option for option in options if option not in parser.options()]:
        suggestion = nearest(unknown[0], parser.options())
        raise SettingsError(f"{unknown[0]}: no such option of a sweep{suggestion}; options of pfl fit come after --")
    config = parser.parse_args(args[:split])
    seeds = as_list(config.seeds)
    passed = list(without_aliases([*config.passed, *args[split + 1 :]]))
    vary = [without_alias(setting) for setting in as_list(config.vary)]
    search = [without_alias(setting) for setting in as_list(config.search)]
    try:
        if search and vary:
            raise SettingsError("vary: leave it out with search")
        methods = [config_file(method, "methods") for method in as_list(config.methods)]
        out = expand_path(config.out, "out")
        runs = list(plan(methods, vary, seeds, passed, out)) if not search else []
        searches = searches_of(methods, search, seeds, passed, out) if search else []
        start = submitting(as_list(config.submit), out / "submitit") if config.submit else start_here
    except PflError as error:
        raise SettingsError(str(error)) from error
    sweep = Sweep(config.jobs, start)
    sweep.waiting = len(runs)
    with sweep.forwarding():
        has_results = [search.run(config.trials, max(1, sweep.jobs // len(seeds)), sweep) for search in searches]
        folders = sweep.execute_all(runs)
    if finished := [str(folder) for folder in folders if folder]:
        show(f"Compare: {shlex.join(['pfl', 'compare', *finished, '--out', f'{out}/comparison'])}")
    if sweep.signal or not all([*has_results, *folders]):
        raise SystemExit(128 + sweep.signal if sweep.signal else 1)


def searches_of(*plan: Any) -> list[Any]:
    """The searches of ``--search``, which need a library of their own."""
    try:
        from pfl_lightning.cli.search import planned_searches
    except ImportError as error:
        raise SettingsError(f'search: needs pip install "pfl_lightning[search]" ({error})') from error
    return planned_searches(*plan)


def as_list(value: Any) -> list[Any]:
    """What a settings file has as a list, or as its only element."""
    return value if isinstance(value, list) else [value]


def sweep_parser() -> SettingsParser:
    """The options of ``pfl sweep``; ``help/sweep.txt`` says what they do."""
    parser = SettingsParser(prog="pfl sweep")
    parser.add_argument("--config", action="config")
    parser.add_argument("--seeds", type=Seed, nargs="+", required=True)
    parser.add_argument("--methods", nargs="+", required=True)
    for repeatable in ("--vary", "--search", "--passed"):
        parser.add_argument(repeatable, action="append", default=[])
    parser.add_argument("--trials", type=PositiveInt, default=20)
    parser.add_argument("--out", default="sweep")
    parser.add_argument("--jobs", type=PositiveInt, default=1)
    parser.add_argument("--submit", nargs="+", default=[])
    return parser
