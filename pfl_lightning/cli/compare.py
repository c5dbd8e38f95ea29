"""``pfl compare``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pfl_lightning import report
from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.cli.console import CONSOLE, complain
from pfl_lightning.cli.parser import PflParser
from pfl_lightning.errors import PflError
from pfl_lightning.quantity import ACCURACY

Format = Literal["png", "pdf", "svg"]
DESCRIPTION = """Plots and tabulates the test results of runs on the same data. Runs that differ only in their seed form
one curve: the mean over the seeds, with a band of one standard deviation."""


def compare_command(args: list[str]) -> None:
    """Run ``pfl compare``.

    Args:
        args: What follows ``compare``.

    Raises:
        PflError: If the runs cannot be compared.
    """
    given = compare_parser().parse_args(args)
    runs = [report.read_run(Path(folder)) for folder in given.runs]
    report.check_same_data(runs)
    for run in runs:
        if run.rounds[-1] < run.settings["trainer.max_steps"]:
            complain(
                f"'{run.folder}' stops after round {run.rounds[-1]} of {run.settings['trainer.max_steps']}", "note"
            )
    curves = report.curves_of(runs, given.models)
    most = 1 if curves[0].quantity == ACCURACY else sys.float_info.max
    if wrong := [target for target in given.targets if not 0 <= target <= most]:
        raise PflError(
            f"targets: {wrong[0]:g} is not possible; allowed: accuracies between 0 and 1, or losses from 0 on"
        )
    out = Path(given.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PflError(f"out: cannot make the folder '{out}' ({error.strerror})") from error
    for table in report.tables_of(curves, given.communication_times, given.targets):
        report.write_csv(table.rows, out / f"{table.name}.csv")
        write_text(table.text, out / f"{table.name}.md")
    choice = write_choice(curves, out) if report.can_choose(curves) else None
    report.write_pictures(report.pictures_of(curves, given.communication_times, choice), given.format, out)
    CONSOLE.print(f"Figures and tables: {out}; captions: {out / 'figures.md'}")


def compare_parser() -> PflParser:
    """The arguments of ``pfl compare``."""
    parser = PflParser(prog="pfl compare", description=DESCRIPTION)
    parser.add_argument("runs", nargs="+", help="Run folders.")
    parser.add_argument("--out", default="comparison", help="Output folder for the figures and tables.")
    parser.add_argument(
        "--communication_times",
        type=NonNegativeFloat,
        nargs="+",
        default=[0.0, 10.0, 100.0],
        help="Simulated seconds of communication per round; they replace those of the runs.",
    )
    parser.add_argument(
        "--targets",
        type=float,
        nargs="+",
        default=[],
        help="Mean accuracies between 0 and 1 (or losses) for the tables of what they cost; by default 90, 95 and 99 %"
        " of the best final accuracy without stage doubling.",
    )
    parser.add_argument(
        "--format",
        type=Format,
        nargs="+",
        default=["png", "pdf"],
        help="Formats of the figures; in PDF and SVG, text stays text.",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=[],
        help="Evaluated models, such as stored; by default the usual ones of each method.",
    )
    return parser


def write_choice(curves: Sequence[report.Curve], out: Path) -> report.Choice | None:
    """Print and write what clients get that choose among the curves, unless these have no seed in common."""
    if not report.common_seeds(curves):
        complain("no table of what clients choose: no seed is in all curves", "note")
        return None
    choice = report.choice_of(curves)
    tables = report.choice_tables(choice)
    for table in tables:
        report.write_csv(table.rows, out / f"{table.name}.csv")
    write_text("\n".join(table.text for table in tables), out / "choice.md")
    return choice


def write_text(text: str, path: Path) -> None:
    """Print a text, and write it."""
    path.write_text(text)
    CONSOLE.print(text)
