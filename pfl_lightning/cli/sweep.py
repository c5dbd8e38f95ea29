import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse.typing import NonNegativeInt, PositiveInt

from pfl_lightning.cli.console import CONSOLE
from pfl_lightning.cli.fit import PflCLI
from pfl_lightning.cli.parser import PflParser, plain
from pfl_lightning.cli.runs import Resume, find_resume, refuse_changes
from pfl_lightning.errors import PflError
from pfl_lightning.settings import run_name

DESCRIPTION = """Runs pfl fit for each method and seed, each in a process of its own. The same command again skips
finished runs and resumes the others. What follows -- is passed to pfl fit: settings files come before the method's
file, options after it.
Example: pfl sweep --seeds 1 2 --methods configs/methods/fedrep.yaml -- --config configs/data/cifar10.yaml"""
OWN = ("--seed_everything", "--trainer.default_root_dir", "--ckpt_path")  # set by the sweep itself


class Settings(PflCLI):
    """Reads the settings of a run, and starts nothing."""

    def instantiate_classes(self) -> None:
        """Nothing is built."""


class PlannedRun(NamedTuple):
    """A run of the sweep: its name in progress lines, folder, arguments of ``pfl fit``, and all that these set."""

    name: str
    folder: Path
    args: list[str]
    settings: dict[str, Any]

    def resume(self) -> Resume | None:
        """Its newest checkpoint, if there is one; a PflError if that has other settings."""
        try:
            found = find_resume("last", self.folder / run_name(self.settings))
        except PflError:
            return None
        for line in refuse_changes(found.content["config"], self.settings):
            if not line.startswith("data.root"):
                raise PflError(f"{line}; keep the old value, or choose another --out")
        return found


class Sweep:
    """Runs processes outside the terminal's process group, and forwards each signal to them once."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.signal = 0

    def pass_on(self, number: int, *_: Any) -> None:
        """Let the processes save and stop; a second signal stops them at once."""
        self.signal = number
        for process in self.processes:
            process.send_signal(number)

    def execute(self, run: PlannedRun) -> Path | None:
        """Start or resume a run unless it is finished, and report on it; return the folder of a finished run."""
        if self.signal:
            return None
        rounds = run.settings["trainer"]["max_steps"]
        try:
            done = resume.content["global_step"] if (resume := run.resume()) else 0
            if done < rounds:
                CONSOLE.print(f"{run.name}: starts round {done + 1} of {rounds}")
                self.fit(run, ["--ckpt_path=last"] if resume else [])
                resume = run.resume()
        except PflError as error:
            CONSOLE.print(f"{run.name}: {'stopped' if self.signal else f'failed: {error}'}")
            return None
        CONSOLE.print(f"{run.name}: finished")
        return resume and resume.folder

    def fit(self, run: PlannedRun, args: list[str]) -> None:
        """Run ``pfl fit`` in a process; if it fails, raise a PflError with the last line of its stderr."""
        run.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pfl_lightning", "fit", *run.args, *args]
        with (run.folder / "stderr.txt").open("w+") as said:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
            self.processes.append(process)
            if self.signal:  # it came while the process started
                process.send_signal(self.signal)
            if code := process.wait():
                said.seek(0)
                raise PflError([f"exit code {code}", *filter(str.strip, said)][-1].strip().removeprefix("pfl: error: "))


def sweep_command(args: list[str]) -> None:
    """Run ``pfl sweep`` with the arguments that follow it.

    Raises:
        SystemExit: With code 1 if a run fails, 130 or 143 after a signal.
    """
    split = args.index("--") if "--" in args else len(args)
    parser = PflParser(prog="pfl sweep", description=DESCRIPTION)
    parser.add_argument("--seeds", type=NonNegativeInt, nargs="+", required=True, help="Values of seed_everything.")
    parser.add_argument("--methods", nargs="+", required=True, help="Settings files, one per method.")
    parser.add_argument("--out", default="sweep", help="Output folder; runs are in <out>/<method>/seed_<seed>.")
    parser.add_argument("--jobs", type=PositiveInt, default=1, help="Number of runs at the same time.")
    given = parser.parse_args(args[:split])
    runs, sweep = list(plan(given.methods, given.seeds, args[split + 1 :], Path(given.out))), Sweep()
    before = {number: signal.signal(number, sweep.pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    with ThreadPoolExecutor(given.jobs) as pool:
        folders = list(pool.map(sweep.execute, runs))
    for number, handler in before.items():
        signal.signal(number, handler)
    if finished := [str(folder) for folder in folders if folder]:
        CONSOLE.print(f"Compare: {shlex.join(['pfl', 'compare', *finished, '--out', f'{given.out}/comparison'])}")
    if sweep.signal or None in folders:
        raise SystemExit(128 + sweep.signal if sweep.signal else 1)


def plan(methods: Sequence[str], seeds: Sequence[int], passed: Sequence[str], out: Path) -> Iterator[PlannedRun]:
    """The runs of a sweep, method by method, with the arguments ``passed`` on to ``pfl fit``."""
    names = [Path(method).stem for method in methods]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PflError(f"methods: {twice.pop()} is listed twice; allowed: files with different names")
    if own := [word for word in passed if word.partition("=")[0] in OWN]:
        raise PflError(f"{own[0]} is not possible, the sweep sets it; allowed: --seeds, --out")
    runs = [(name, method, seed) for name, method in zip(names, methods, strict=True) for seed in dict.fromkeys(seeds)]
    for number, (name, method, seed) in enumerate(runs, start=1):
        folder = out / name / f"seed_{seed}"
        where = [f"--seed_everything={seed}", f"--trainer.default_root_dir={folder}"]
        args = [*with_method(passed, method), *where, "--trainer.enable_progress_bar=false"]
        cli = Settings(args, run=False)
        settings = plain(cli.parser, cli.config)
        yield PlannedRun(f"{number}/{len(runs)} {name}, seed {seed}", folder, args, settings)


def with_method(passed: Sequence[str], method: str) -> list[str]:
    """The arguments with the method's file after the other files, such as the data set's, and before the options."""
    files = [index for index, word in enumerate(passed) if word.partition("=")[0] in ("-c", "--config")]
    end = max((index + (1 if "=" in passed[index] else 2) for index in files), default=0)
    return [*passed[:end], "--config", method, *passed[end:]]
