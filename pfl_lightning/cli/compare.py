"""``pfl compare``."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from pfl_lightning import report
from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.cli.console import say_once, show
from pfl_lightning.errors import PflError
from pfl_lightning.score_kind import ACCURACY
from pfl_lightning.settings.parser import SettingsParser

PRINTED = ("final", "time_to_accuracy")  # tables; the others are only written
SOMETIMES = ("convergence", "bits_to_accuracy", "samples_to_accuracy", "choice", "choice_groups")  # not of all runs


def compare_command(args: list[str]) -> None:
    """Run ``pfl compare``.

    Args:
        args: What follows ``compare``.

    Raises:
        PflError: If the runs cannot be compared.
    """
    given = compare_parser().parse_args(args)
    models, targets, times = (
        list(dict.fromkeys(values)) for values in (given.models, given.targets, given.communication_times)
    )
    runs = [report.read_run(Path(folder)) for folder in given.runs]
    report.check_same_data(runs)
    for run in runs:
        if run.left_out:
            rounds = ", ".join(map(str, run.left_out))
            say_once(f"'{run.folder}' is compared without round {rounds}, which its clients.csv lacks", "note")
        if run.rounds[-1] < (rounds := run.settings["trainer.max_steps"]):
            say_once(f"'{run.folder}' stops after round {run.rounds[-1]} of {rounds}", "note")
    curves = report.curves_of(runs, models)
    for curve in curves:
        if max(run.rounds[-1] for run in curve.runs) > (last := curve.rounds[-1]):
            say_once(f"final results of {curve.label} are of round {last}, the last that all its seeds have", "note")
    short, long = (end(curves, key=lambda curve: curve.rounds[-1]) for end in (min, max))
    if short.rounds[-1] < long.rounds[-1]:
        rounds = " and ".join(f"round {curve.rounds[-1]} of {curve.label}" for curve in (short, long))
        say_once(f"final results are of different rounds, such as {rounds}", "note")
    if curves[0].score_kind == ACCURACY and (wrong := [target for target in targets if target > 1]):
        raise PflError(f"targets: {wrong[0]:g} is not possible; allowed: accuracies between 0 and 1")
    out = Path(given.out).expanduser()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PflError(f"out: cannot make the folder '{out}' ({error.strerror})") from error
    for name, ending in product(SOMETIMES if report.has_pictures(out) else (), ("csv", "md")):
        (out / f"{name}.{ending}").unlink(missing_ok=True)  # of an earlier comparison
    choice = choice_among(curves) if report.can_choose(curves) else None
    tables = [*report.tables_of(curves, times, targets), *(report.choice_tables(choice) if choice else ())]
    for table in tables:
        report.write_csv(table.rows, out / f"{table.name}.csv")
        (out / f"{table.name}.md").write_text(table.text)
    report.write_pictures(report.pictures_of(curves, times, choice), given.format, out)
    printed = [table for table in tables if table.name in PRINTED and table.says_something]
    others = [table.name for table in tables if table not in printed]
    for table in printed:  # when all files are there, as `| head` ends the program
        show(table.text)
    show(f"More tables: {out} ({', '.join(others)}); figures: {out / 'figures.md'}")


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
