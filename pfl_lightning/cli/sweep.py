import os
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from threading import Lock
from time import monotonic
from typing import Any

from pfl_lightning.bounds import PositiveInt, Seed
from pfl_lightning.cli.console import show
from pfl_lightning.cli.planning import Plan, PlannedRun, parse, values_by_key
from pfl_lightning.errors import PflError, SettingsError
from pfl_lightning.runs.resume import Resume, expand_path, has_stopped
from pfl_lightning.runs.run_settings import without_alias, without_aliases
from pfl_lightning.settings.parser import SettingsParser
from pfl_lightning.settings.shipped_files import config_file

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


def sweep_command(args: list[str]) -> None:
    """Run ``pfl sweep`` with the arguments that follow it.

    Raises:
        PflError: If they are wrong.
        SystemExit: With code 1 if a run fails, 130 or 143 after a signal.
    """
    split = args.index("--") if "--" in args else len(args)
    try:
        options = sweep_parser().parse_args(args[:split])
    except SettingsError as error:
        hint = "; options of pfl fit come after --, or in passed" if ": no such option" in str(error) else ""
        raise SettingsError(f"{error}{hint}") from error
    passed = list(without_aliases([*options.passed, *args[split + 1 :]]))
    option = "search" if options.search else "vary"
    try:
        if options.search and options.vary:
            raise SettingsError("vary: leave it out with search")
        methods = [config_file(method, "methods") for method in as_list(options.methods)]
        seeds = list(dict.fromkeys(map(int, as_list(options.seeds))))
        plan = Plan(methods, seeds, passed, expand_path(options.out, "out"))
        varied = values_by_key(list(map(without_alias, as_list(options[option]))), option)
        plan.check(option, varied)
        searches = searches_of(plan, varied) if options.search else []
        runs = [] if options.search else plan.grid(varied)
        executor = executor_of(as_list(options.submit), plan.out / "submitit") if options.submit else None
    except PflError as error:
        raise SettingsError(str(error)) from error
    sweep = Sweep(options.jobs, executor)
    sweep.waiting = len(runs)
    with sweep.forwarding():
        has_results = [search.run(options.trials, max(1, sweep.jobs // len(seeds)), sweep) for search in searches]
        folders = sweep.execute_all(runs)
    if finished := [str(folder) for folder in folders if folder]:
        show(f"Compare: {shlex.join(['pfl', 'compare', *finished, '--out', f'{plan.out}/comparison'])}")
    if sweep.signal or not all([*has_results, *folders]):
        raise SystemExit(128 + sweep.signal if sweep.signal else 1)


def searches_of(plan: Plan, varied: Mapping[str, Sequence[str]]) -> list[Any]:
    """A search for each method, which needs a library of its own.

    Raises:
        PflError: If it is missing, or a search is not possible.
    """
    try:
        from pfl_lightning.cli.search import Search, space_of
    except ImportError as error:
        raise PflError(f'search: needs pip install "pfl_lightning[search]" ({error})') from error
    space = space_of(varied)
    return [Search(plan, method, space) for method in plan.methods]


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
