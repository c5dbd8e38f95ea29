"""``pfl bench``: methods on the data sets of a suite, with settings chosen by validation samples, and a report."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pfl_lightning import files, report
from pfl_lightning.bounds import PositiveInt, Seed
from pfl_lightning.cli.console import show
from pfl_lightning.cli.execution import Sweep, executor_of, last_line, seconds_of
from pfl_lightning.cli.planning import Plan, PlannedRun, labels, values_by_key, without_place
from pfl_lightning.cli.search import Search
from pfl_lightning.cli.sweep import method_of, search_of
from pfl_lightning.errors import PflError, SettingsError
from pfl_lightning.paths import expand_home
from pfl_lightning.runs.resume import expand_path
from pfl_lightning.runs.run_settings import without_alias, without_aliases
from pfl_lightning.settings.parser import SettingsParser
from pfl_lightning.settings.shipped_files import configs

DIVERGED = "diverged by round"  # what a method says of it
ROOT = "{root}"  # stands in a suite for the folder of all data sets


def bench_command(args: list[str]) -> None:
    """Run ``pfl bench`` with the arguments that follow it.

    Raises:
        PflError: If they are wrong.
        SystemExit: With code 1 if a method is not finished on a data set, 130 or 143 after a signal.
    """
    options = bench_parser().parse_args(list(suite_words(args)))
    out = expand_path(options.out, "out").absolute()
    try:
        bench = Bench(options, out)
        if bench.tasks:
            show(f"Reading the settings of {bench.sizes}")
        bench.check()
        kept = bench.kept(expand_home(folder, "beside") for folder in options.beside)
        if not bench.tasks and not kept:
            raise PflError(
                "methods: a value is missing; allowed: methods and data, as in a suite, or results with beside"
            )
        executor = executor_of(options.submit, out / "submitit") if options.submit else None
    except PflError as error:
        raise SettingsError(str(error)) from error
    sweep = Sweep(options.jobs, executor, Search.shown_score if bench.space else None)
    with sweep.forwarding():
        entries = bench.execute(sweep)
    results = [report.suite_results(bench.comparable, entries)] if any(map(report.Entry.is_known, entries)) else []
    if results := [*results, *kept]:
        together = reduce(report.SuiteResults.beside, results)
        files.make_folder(out)
        together.write(out)
        show(report.write_suite_report(together, options.references, options.format, out))
    if sweep.signal or len(entries) < len(bench.tasks):
        raise SystemExit(128 + sweep.signal if sweep.signal else 1)


def has_ended(run: PlannedRun, folder: Path | None) -> bool:
    """Whether a run has done its rounds, or would diverge again."""
    return folder is not None or DIVERGED in last_line(run.folder)


def suite_words(words: Sequence[str]) -> Iterator[str]:
    """The words of a command line, with a settings file in place of each suite: a path, or a name in ``suites/``."""
    previous = ""
    for word in words:
        option, equals, value = word.partition("=")
        if option == "--suite":
            yield f"--config={suite_file(value)}" if equals else "--config"
        else:
            yield suite_file(word) if previous == "--suite" else word
        previous = word


def suite_file(word: str) -> str:
    """The name of a suite that comes with the package as settings files are found by name, or any other word."""
    return f"suites/{word}" if f"suites/{word}" in configs() else word


class Task(NamedTuple):
    """A method on a data set of the suite."""

    data: str
    method: str


class Bench:
    """A suite, and the runs that it needs.

    Args:
        options: The options of ``pfl bench``.
        out: Folder of all runs.

    Raises:
        PflError: If a part of the suite is no such part.
    """

    def __init__(self, options: Any, out: Path) -> None:
        self.out = out
        self.trials = options.trials
        self.only = options.only
        data = {name: list(words) for name, words in options.data.items() if name in (options.only or options.data)}
        if unknown := [name for name in options.only if name not in data]:
            raise PflError(f"only: {unknown[0]} is not possible; allowed: {', '.join(options.data) or 'none'}")
        seeds = list(dict.fromkeys(map(int, options.seeds)))
        search_seeds = list(dict.fromkeys(map(int, options.search_seeds))) or seeds
        self.comparable: dict[str, Any] = {
            "data": data,
            "seeds": seeds,
            "search": options.search,
            "search_seeds": search_seeds,
            "trials": int(options.trials),
            "settings": {},
        }
        self.space = values_by_key(list(map(without_alias, options.search)), "search")
        methods = list(map(method_of, options.methods))
        self.tasks = [Task(name, method) for method in methods for name in data]
        root = str(expand_path(options.root, "root"))
        self.plans: dict[str, Plan] = {}
        self.searches: dict[str, Plan] = {}
        for name, words in data.items():
            passed = list(without_aliases(word.replace(ROOT, root) for word in words))
            self.plans[name] = Plan(methods, seeds, passed, out / name, f"{name}: ")
            self.searches[name] = self.plans[name]._replace(seeds=search_seeds)
        self.in_both = len({*seeds} & {*search_seeds}) if self.space else 0

    @property
    def sizes(self) -> str:
        """Numbers of methods and data sets."""
        counts = {"method": len(self.tasks) // len(self.plans), "data set": len(self.plans)}
        return " on ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items())

    def check(self) -> None:
        """Refuse what would fail in the middle: a method's settings on a data set; and count the trials of a search.

        Raises:
            PflError: If a setting is wrong.
        """
        for data, plan in self.plans.items():
            plan.check("search", self.space)
            self.searches[data].check("search", self.space)
        for data, method in self.tasks:
            run = self.plans[data].runs(method, {})[0]
            self.comparable["settings"].setdefault(data, report.suite_settings(run.settings))
        if self.tasks and self.space:
            data, method = self.tasks[0]
            self.trials = search_of(self.searches[data], method, self.space).number(self.trials)

    def kept(self, folders: Iterable[Path]) -> list[report.SuiteResults]:
        """The results in some folders, on the data sets of ``--only``.

        They must be comparable to those of the suite, or to the first of them.

        Raises:
            PflError: If a folder has none, or others.
        """
        results = [(folder, report.read_results(folder)) for folder in folders]
        for folder, kept in results:
            report.check_same_suite(self.comparable if self.tasks else results[0][1].suite, kept, folder)
            own = {self.plans[task.data].name(task.method) for task in self.tasks}
            if both := sorted(own & {*kept.scores["method"]}):
                show(f"'{folder}' has results of {', '.join(both)}, too, in whose place are those of this run")
        return [kept.on(self.only or kept.suite["data"]) for _, kept in results]

    def execute(self, sweep: Sweep) -> list[report.Entry]:
        """Tune and train all methods, and return those that are finished."""
        if self.tasks:
            trials = self.trials if self.space else 0
            searched = trials * len(self.comparable["search_seeds"])
            sweep.waiting = len(self.tasks) * (searched + len(self.comparable["seeds"]) - self.in_both)
            show(f"{self.sizes}: {sweep.waiting} runs; the lines of the first ones say how long the others take")
        with ThreadPoolExecutor(sweep.jobs) as pool:
            entries = pool.map(lambda task: self.finish(task, sweep), self.tasks)
        return [entry for entry in entries if entry]

    def finish(self, task: Task, sweep: Sweep) -> report.Entry | None:
        """Tune and train a method on a data set; None, after a line, if that cannot be done now."""
        plan = self.plans[task.data]
        try:
            values = self.tuned(task, sweep)
            runs = [] if values is None else plan.runs(task.method, values)
            sweep.waiting += self.in_both
            folders = sweep.execute_all(runs)
            if sweep.signal or not runs or not all(map(has_ended, runs, folders)):
                return None
            self.share(task, runs[0])
        except (PflError, OSError) as error:
            show(f"{task.data}: {plan.name(task.method)}: failed: {error}")
            return None
        chosen = ", ".join(labels(values or {}))
        seconds = [seconds_of(run.folder) for run in runs]
        return report.Entry(task.data, plan.name(task.method), chosen, plan.seeds, folders, seconds)

    def tuned(self, task: Task, sweep: Sweep) -> dict[str, str] | None:
        """The settings with the best validation score; none if nothing is searched, and None if none has a score."""
        if not self.space:
            return {}
        search = search_of(self.searches[task.data], task.method, self.space)
        at_once = self.trials if search.combinations else 1  # so that what a sampler tries does not depend on the jobs
        return search.best_values() if search.run(self.trials, at_once, sweep) else None

    def share(self, task: Task, run: PlannedRun) -> None:
        """Write the settings of a method's runs for others, who choose seed and folder themselves."""
        path = self.out / task.data / "tuned" / f"{self.plans[task.data].name(task.method)}.yaml"
        files.write_text(yaml.safe_dump(without_place(run.settings), sort_keys=False), path)


def bench_parser() -> SettingsParser:
    """The options of ``pfl bench``; ``help/bench.txt`` says what they do."""
    parser = SettingsParser(prog="pfl bench")
    parser.add_argument("--config", action="config")
    parser.add_argument("--data", type=dict[str, list[str]], default={})
    parser.add_argument("--only", type=str, nargs="+", default=[])
    parser.add_argument("--methods", type=list[str], default=[])
    parser.add_argument("--seeds", type=Seed, nargs="+", default=[1, 2, 3])
    parser.add_argument("--search", type=list[str], default=[])
    parser.add_argument("--search_seeds", type=Seed, nargs="+", default=[])
    parser.add_argument("--trials", type=PositiveInt, default=20)
    parser.add_argument("--references", type=str, nargs="+", default=["Local", "FedAvg-FT"])
    parser.add_argument("--beside", type=str, nargs="+", default=[])
    parser.add_argument("--root", type=str, default="data")
    parser.add_argument("--out", type=str, default="bench")
    parser.add_argument("--jobs", type=PositiveInt, default=1)
    parser.add_argument("--submit", type=str, nargs="+", default=[])
    parser.add_argument("--format", type=report.Format, nargs="+", default=["png"])
    return parser
