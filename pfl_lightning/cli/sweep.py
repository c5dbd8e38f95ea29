"""``pfl sweep``."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pfl_lightning.bounds import PositiveInt, Seed
from pfl_lightning.cli.console import show
from pfl_lightning.cli.execution import Sweep, executor_of
from pfl_lightning.cli.planning import BEST, Plan, PlannedRun, values_by_key
from pfl_lightning.errors import PflError, SettingsError
from pfl_lightning.objects import import_object
from pfl_lightning.report.run_files import data_settings
from pfl_lightning.runs.resume import expand_path
from pfl_lightning.runs.run_settings import without_alias, without_aliases
from pfl_lightning.settings.parser import SettingsParser
from pfl_lightning.settings.registry import choices
from pfl_lightning.settings.shipped_files import config_file
from pfl_lightning.settings.values import flat


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
    if isinstance(options.passed, dict):
        raise SettingsError(f"passed must be words as on the command line, such as --rounds=3, got {options.passed}")
    passed = list(without_aliases([*as_list(options.passed), *args[split + 1 :]]))
    option = "search" if options.search else "vary"
    try:
        if options.search and options.vary:
            raise SettingsError("vary: leave it out with search")
        methods = list(map(method_of, as_list(options.methods)))
        seeds = list(dict.fromkeys(map(int, as_list(options.seeds))))
        out = expand_path(options.out, "out")
        plan = Plan(methods, seeds, passed, out.absolute() if options.search else out)
        varied = values_by_key([without_alias(str(word)) for word in as_list(options[option])], option)
        plan.check(option, varied)
        searches = [search_of(plan, method, varied) for method in methods] if options.search else []
        runs = [] if options.search else plan.grid(varied)
        executor = executor_of(as_list(options.submit), plan.out / "submitit") if options.submit else None
    except PflError as error:
        raise SettingsError(str(error)) from error
    sweep = Sweep(options.jobs, executor, searches[0].shown_score if searches else None)
    sweep.waiting = len(runs)
    with sweep.forwarding():
        has_results = [search.run(options.trials, max(1, sweep.jobs // len(seeds)), sweep) for search in searches]
        folders = sweep.execute_all(runs)
    for search, has_result in zip(searches, has_results, strict=True):
        if has_result:
            show(f"Best of {search.folder.name}: {search.best()}")
    if any(has_results):
        show(f"Train with other seeds: {training_command(plan._replace(out=out))}")
    for command in comparisons(plan, runs, folders):
        show(f"Compare: {command}")
    if sweep.signal or not all([*has_results, *folders]):
        raise SystemExit(128 + sweep.signal if sweep.signal else 1)


def comparisons(plan: Plan, runs: Sequence[PlannedRun], folders: Sequence[Path | None]) -> Iterator[str]:
    """The commands that compare what is finished of a sweep: one for the runs on the same data each."""
    on_same: dict[str, list[str]] = {}
    for run, folder in zip(runs, folders, strict=True):
        if folder:
            data = data_settings(dict(flat({"data": run.settings["data"]})))
            on_same.setdefault(repr(data), []).append(str(folder))
    for number, finished in enumerate(on_same.values(), start=1):
        out = f"{plan.out}/comparison{f'_{number}' if len(on_same) > 1 else ''}"
        yield shlex.join(["pfl", "compare", *finished, "--out", out])


def method_of(word: str) -> str:
    """The settings file of a method, or its class, such as ``FedAvg`` or ``my_method.MyMethod``.

    Raises:
        PflError: If there is no such file or class.
    """
    try:
        return config_file(word, "methods")
    except PflError:
        if word in choices()["model"] or isinstance(import_object(word), type):
            return word
        raise


def training_command(plan: Plan) -> str:
    """The command that trains with the best settings of all searches of a plan, and seeds that have chosen none."""
    seeds = [str(max(plan.seeds) + offset) for offset in (1, 2, 3)]
    files = f"{shlex.quote(str(plan.out / 'search'))}/*/{BEST}"
    return f"pfl sweep --methods {files} --seeds {' '.join(seeds)} --out {shlex.quote(str(plan.out / 'best'))}"


def search_of(plan: Plan, method: str, varied: Mapping[str, Sequence[str]]) -> Any:
    """The search for a method's settings, which needs a library of its own.

    Raises:
        PflError: If it is missing, or the search is not possible.
    """
    try:
        from pfl_lightning.cli.search import Search, space_of
    except ImportError as error:
        raise PflError(f'search: needs uv pip install "pfl_lightning[search]" ({error})') from error
    return Search(plan, method, space_of(varied))


def as_list(value: Any) -> list[Any]:
    """What a settings file has as a list, or as its only element."""
    return value if isinstance(value, list) else [value]


def sweep_parser() -> SettingsParser:
    """The options of ``pfl sweep``; ``help/sweep.txt`` says what they do."""
    parser = SettingsParser(prog="pfl sweep")
    parser.add_argument("--config", action="config")
    parser.add_argument("--seeds", type=Seed, nargs="+", required=True)
    parser.add_argument("--methods", type=str, nargs="+", required=True)
    for repeatable in ("--vary", "--search", "--passed"):
        parser.add_argument(repeatable, action="append", default=[])
    parser.add_argument("--trials", type=PositiveInt, default=20)
    parser.add_argument("--out", type=str, default="sweep")
    parser.add_argument("--jobs", type=PositiveInt, default=1)
    parser.add_argument("--submit", type=str, nargs="+", default=[])
    return parser
