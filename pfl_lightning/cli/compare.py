"""``pfl compare``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pfl_lightning import report
from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.cli.console import say_once, show
from pfl_lightning.errors import PflError
from pfl_lightning.paths import expand_home
from pfl_lightning.score_kind import ACCURACY
from pfl_lightning.settings.parser import SettingsParser

PRINTED = ("final", "time_to_accuracy")  # tables; the others are only written


def compare_command(args: list[str]) -> None:
    """Run ``pfl compare``.

    Args:
        args: What follows ``compare``.

    Raises:
        PflError: If the runs cannot be compared.
    """
    options = compare_parser().parse_args(args)
    runs = [report.read_run(Path(folder)) for folder in options.runs]
    report.check_same_data(runs)
    curves = report.curves_of(runs, without_repeats(options.models))
    for note in without_repeats(list(incomplete(runs, curves))):  # FedAvg is two curves
        say_once(note, "note")
    targets = without_repeats(options.targets)
    if curves[0].score_kind == ACCURACY and (too_large := [target for target in targets if target > 1]):
        raise PflError(f"targets must be accuracies between 0 and 1, got {too_large[0]:g}")
    folder = expand_home(options.out, "out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PflError(f"out: cannot make the folder '{folder}' ({error.strerror})") from error
    report.clear(folder)
    choice = choice_among(curves) if report.can_choose(curves) else None
    times = without_repeats(options.communication_times)
    tables = [*report.tables_of(curves, times, targets), *(report.choice_tables(choice) if choice else ())]
    try:
        for table in tables:
            report.write_csv(table.rows, folder / f"{table.name}.csv")
            (folder / f"{table.name}.md").write_text(table.text)
            if table.latex:
                (folder / f"{table.name}.tex").write_text(table.latex)
        report.write_pictures(report.pictures_of(curves, times, choice), options.format, folder)
    except OSError as error:  # without a name, if the disk is full
        raise PflError(f"out: cannot write '{error.filename or folder}' ({error.strerror})") from error
    printed = [table for table in tables if table.name in PRINTED and table.says_something]
    for table in printed:  # when all files are there, as `| head` ends the program
        show(table.text)
    not_printed = ", ".join(table.name for table in tables if table not in printed)
    show(f"More tables: {folder} ({not_printed}); figures: {folder / 'figures.md'}")


def without_repeats(values: Sequence[Any]) -> list[Any]:
    """Values in their order, each once."""
    return list(dict.fromkeys(values))


def incomplete(runs: Sequence[report.RunRecord], curves: Sequence[report.Curve]) -> Iterator[str]:
    """What readers of a comparison must know: rounds that runs lack, and results of different rounds."""
    for run in runs:
        if run.left_out:
            rounds = ", ".join(map(str, run.left_out))
            yield f"'{run.folder}' is compared without round {rounds}, which its clients.csv lacks"
        if run.rounds[-1] < (planned := run.settings["trainer.max_steps"]):
            yield f"'{run.folder}' stops after round {run.rounds[-1]} of {planned}"
    for curve in curves:
        if several := report.differing(curve.runs, lambda run: run.label.code):
            yield "{}: its code has changed between '{}' and '{}'".format(curve.runs[0].label.name, *several)
        last_round = curve.rounds[-1]
        if max(run.rounds[-1] for run in curve.runs) > last_round:
            yield f"final results of {curve.label} are of round {last_round}, the last that all its seeds have"
    shortest = min(curves, key=lambda curve: curve.rounds[-1])
    longest = max(curves, key=lambda curve: curve.rounds[-1])
    if shortest.rounds[-1] < longest.rounds[-1]:
        rounds = " and ".join(f"round {curve.rounds[-1]} of {curve.label}" for curve in (shortest, longest))
        yield f"final results are of different rounds, such as {rounds}"


def compare_parser() -> SettingsParser:
    """The arguments of ``pfl compare``; ``help/compare.txt`` says what they do."""
    parser = SettingsParser(prog="pfl compare")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--out", default="comparison")
    parser.add_argument("--communication_times", type=NonNegativeFloat, nargs="+", default=[0.0, 10.0, 100.0])
    parser.add_argument("--targets", type=NonNegativeFloat, nargs="+", default=[])
    parser.add_argument("--format", type=report.Format, nargs="+", default=["png"])
    parser.add_argument("--models", nargs="+", default=[])
    return parser


def choice_among(curves: Sequence[report.Curve]) -> report.Choice | None:
    """What clients choose among the curves, unless these have no seed in common."""
    if not report.common_seeds(curves):
        say_once("no table of what clients choose: no seed is in all curves", "note")
        return None
    return report.choice_of(curves)
