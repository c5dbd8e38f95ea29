import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pfl_lightning.bounds import PositiveInt, Seed
from pfl_lightning.cli.aliases import true_options, true_setting
from pfl_lightning.cli.console import CONSOLE
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.cli.planning import PlannedRun, plan
from pfl_lightning.config_files import config_file
from pfl_lightning.errors import PflError
from pfl_lightning.runs import Resume, expand_path, has_stopped

DESCRIPTION = """Runs pfl fit for each method, each value of what varies, and each seed, in a process of its own. The
same command again skips finished runs and resumes the others. What follows -- is passed to pfl fit: settings files come
before the method's file, options after it, and what varies last.
Example: pfl sweep --seeds 1 2 --methods methods/fedrep --vary model.lr=0.1,0.03 -- --config data/cifar10
With --search model.lr=log:0.001..1 in place of --vary it looks for the settings with the best validation score."""


class Sweep:
    """Runs processes outside the terminal's process group, and forwards each signal to them once.

    Args:
        jobs: Number of runs at the same time.

    Attributes:
        signal: The last signal that asked to stop; 0 if there was none.
    """

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs
        self.processes: list[subprocess.Popen[bytes]] = []
        self.signal = 0

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
        if self.signal:
            return None
        rounds = run.settings["trainer"]["max_steps"]
        try:
            resume = run.resume()
            if not is_finished(resume, rounds):
                CONSOLE.print(f"{run.name}: starts round {rounds_done(resume) + 1} of {rounds}")
                self.fit(run, [f"--ckpt_path={resume.folder}"] if resume else [])
                resume = run.resume()
                if not is_finished(resume, rounds):
                    raise PflError(f"it ended after round {rounds_done(resume)} of {rounds}")
        except (PflError, OSError) as error:
            CONSOLE.print(f"{run.name}: {'stopped' if self.signal else f'failed: {error}'}")
            return None
        CONSOLE.print(f"{run.name}: finished")
        return resume and resume.folder

    def fit(self, run: PlannedRun, args: list[str]) -> None:
        """Run ``pfl fit`` in a process; if it fails, raise a PflError with the last line of its stderr."""
        run.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pfl_lightning", "fit", *run.args, *args]
        with (run.folder / "stderr.txt").open("w+", errors="replace") as said:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
            self.processes.append(process)
            if self.signal:  # it came while the process started
                process.send_signal(self.signal)
            if code := process.wait():
                said.seek(0)
                raise PflError([f"exit code {code}", *filter(str.strip, said)][-1].strip().removeprefix("pfl: error: "))


def rounds_done(resume: Resume | None) -> int:
    """Rounds of the newest checkpoint of a run; 0 if it has none."""
    return resume.content["global_step"] if resume else 0


def is_finished(resume: Resume | None, rounds: int) -> bool:
    """Whether a run has done its rounds, or ``EarlyStopping`` has ended it before."""
    return resume is not None and (rounds_done(resume) >= rounds or has_stopped(resume.content))


def sweep_command(args: list[str]) -> None:
    """Run ``pfl sweep`` with the arguments that follow it.

    Raises:
        SystemExit: With code 1 if a run fails, 2 for a wrong command line, 130 or 143 after a signal.
    """
    split = args.index("--") if "--" in args else len(args)
    parser = sweep_parser()
    given = parser.parse_args(args[:split])
    try:
        methods = [config_file(method, "methods") for method in listed(given.methods)]
    except PflError as error:
        parser.error(str(error), error)
    seeds, passed = listed(given.seeds), list(true_options([*given.passed, *args[split + 1 :]], parser.error))
    vary, search = (list(map(true_setting, listed(words))) for words in (given.vary, given.search))
    out, sweep = expand_path(given.out, "out"), Sweep(given.jobs)
    if search and vary:
        raise PflError("vary: not possible with search; allowed: one of them")
    if search:
        complete = searched(methods, search, seeds, passed, out, given.trials, sweep)
    else:
        runs = list(plan(methods, vary, seeds, passed, out))
        with sweep.forwarding():
            folders = sweep.execute_all(runs)
        complete = None not in folders
        if finished := [str(folder) for folder in folders if folder]:
            CONSOLE.print(f"Compare: {shlex.join(['pfl', 'compare', *finished, '--out', f'{out}/comparison'])}")
    if sweep.signal or not complete:
        raise SystemExit(128 + sweep.signal if sweep.signal else 1)


def searched(
    methods: list[str], search: list[str], seeds: list[int], passed: list[str], out: Path, trials: int, sweep: Sweep
) -> bool:
    """Search the best settings of each method; return whether each has found some."""
    try:
        from pfl_lightning.cli.search import planned_searches
    except ImportError as error:
        raise PflError(f'search: needs pip install "pfl_lightning[search]" ({error})') from error
    searches = planned_searches(methods, search, seeds, passed, out)
    with sweep.forwarding():
        found = [each.run(trials, max(1, sweep.jobs // len(seeds)), sweep) for each in searches]
    return all(found)


def listed(value: Any) -> list[Any]:
    """What a settings file has as a list, or as its only element."""
    return value if isinstance(value, list) else [value]


def sweep_parser() -> PflParser:
    """The options of ``pfl sweep``."""
    parser = PflParser(prog="pfl sweep", description=DESCRIPTION)
    parser.add_argument(
        "--config", action="config", help="YAML file with others of these options, such as sweeps/conformity."
    )
    parser.add_argument("--seeds", type=Seed, nargs="+", required=True, help="Values of seed_everything.")
    parser.add_argument(
        "--methods", nargs="+", required=True, help="Settings files, one per method, such as methods/fedrep."
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="A setting and its values, in YAML. May be given several times: all combinations run.",
    )
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=RANGE",
        help="A setting to search for the best validation score: a range of real or whole numbers, such as "
        "model.momentum=0.0..0.9 or model.head_epochs=1..10, log:0.001..1 for one on a logarithmic scale, or choices "
        "such as model.epochs=1,2,5. May be given several times; each method has a search of its own.",
    )
    parser.add_argument("--trials", type=PositiveInt, default=20, help="Settings that a search tries, for all seeds.")
    parser.add_argument(
        "--passed",
        action="append",
        default=[],
        metavar="WORD",
        help="A word for pfl fit, like those that follow --; a file lists them.",
    )
    parser.add_argument(
        "--out", default="sweep", help="Output folder; runs are in <out>/<method>[,<key>=<value>...]/seed_<seed>."
    )
    parser.add_argument("--jobs", type=PositiveInt, default=1, help="Number of runs at the same time.")
    return parser
