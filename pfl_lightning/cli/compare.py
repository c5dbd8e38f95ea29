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
    write_tables(curves, given.targets or report.usual_targets(curves), given.communication_times, out)
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


def write_tables(
    curves: Sequence[report.Curve], targets: Sequence[float], communication_times: Sequence[float], out: Path
) -> None:
    """Print the tables, and write them as CSV and Markdown."""
    final, times = report.final_rows(curves), report.time_rows(curves, targets, communication_times)
    errors = report.error_rows(curves)
    quantity = curves[0].quantity
    tables = [
        ("final", final, report.final_markdown(final, quantity)),
        ("time_to_accuracy", times, report.time_markdown(times, quantity)),
        ("errors", errors, report.error_markdown(errors, quantity)),
    ]
    if all(curve.logs_losses() for curve in curves):
        converged = report.convergence_rows(curves, communication_times)
        tables.append(("convergence", converged, report.convergence_markdown(converged)))
    for cost in report.COSTS:
        if cost.known(curves):
            spent = report.cost_rows(curves, targets, cost)
            tables.append((f"{cost.name}_to_accuracy", spent, report.cost_markdown(spent, quantity, cost)))
    for name, rows, text in tables:
        report.write_csv(rows, out / f"{name}.csv")
        write_text(text, out / f"{name}.md")


def write_choice(curves: Sequence[report.Curve], out: Path) -> report.Choice | None:
    """Print and write what clients get that choose among the curves, unless these have no seed in common."""
    if not report.common_seeds(curves):
        complain("no table of what clients choose: no seed is in all curves", "note")
        return None
    choice = report.choice_of(curves)
    report.write_csv(report.choice_rows(choice), out / "choice.csv")
    report.write_csv(report.group_rows(choice), out / "choice_groups.csv")
    write_text(report.choice_markdown(choice), out / "choice.md")
    return choice


def write_text(text: str, path: Path) -> None:
    """Print a text, and write it."""
    path.write_text(text)
    CONSOLE.print(text)
