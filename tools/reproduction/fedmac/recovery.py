"""FedMac's Theorem 3: how many rows of data its correlation with a prior saves, measured and in closed form.

Derivations: docs/evidence/derivations.md, Sparse recovery with a prior.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from theory.sparse_recovery import (
    Problems,
    Program,
    draw_problems,
    recovered,
    rows_needed,
    sparse_solution,
    support_subgradient,
)
from torch import Generator

from pfl_lightning.report import save_figure
from pfl_lightning.report.drawing import grid, looks_of
from pfl_lightning.seeding import seed_of
from reproduction.claims import Floats
from reproduction.items import Part
from reproduction.results import Numbers

PROBLEMS = 50  # for each number of rows
ROWS = range(6, 49, 3)
DIMENSION, NONZEROS = 100, 10
ERROR = 0.25  # of the prior
NOISE = 1e-3
NAMES = ("plain l1", "pFedMe", "FedMac")
COLOR_OF = {name: look["color"] for name, look in zip(NAMES, looks_of(NAMES), strict=True)}


class Success(NamedTuple):
    """How often a program finds the signal.

    Attributes:
        rates: Share of the problems for each number of rows, ``[rows]``.
        predicted: Rows that it needs in closed form, as a mean over problems.
    """

    rates: Floats
    predicted: float

    @property
    def half(self) -> float:
        """Rows with which it finds half of the signals, between those that were tried."""
        return float(np.interp(0.5, np.maximum.accumulate(self.rates), list(ROWS)))


def programs(correlation: float) -> dict[str, Program]:
    """The programs that are compared, with a weight of 1 for the l1 norm.

    Args:
        correlation: lambda, of FedMac and pFedMe.
    """
    return dict(zip(NAMES, (Program(), Program(1, correlation, correlation), Program(1, correlation)), strict=True))


def largest_correlation(error: float) -> float:
    """The largest lambda with which FedMac's program has a solution for all priors with an error, whatever the rows."""
    return 1 / (1 + error)


def problems(rows: int, error: float = ERROR) -> Problems:
    """Random problems; those of the same size differ only in the error of the prior."""
    random = Generator().manual_seed(seed_of("sparse recovery", rows))
    return draw_problems(PROBLEMS, rows, DIMENSION, NONZEROS, error, NOISE, random)


def mean_rows(drawn: Problems, program: Program) -> float:
    """Rows that a program needs in closed form, as a mean over problems."""
    return float(rows_needed(drawn.signal, drawn.prior, program).mean())


def mean_subgradient(drawn: Problems, program: Program) -> float:
    """Squared subgradient on the support as a share of plain l1's, as a mean over problems."""
    return float(support_subgradient(drawn.signal, drawn.prior, program).mean()) / NONZEROS


def measure() -> dict[str, Success]:
    """Solve the same problems with all programs."""
    rates: dict[str, list[float]] = {name: [] for name in NAMES}
    compared = programs(largest_correlation(ERROR))
    for rows in ROWS:
        drawn = problems(rows)
        for name, program in compared.items():
            right = recovered(sparse_solution(drawn, program, radius=NOISE), drawn.signal)
            rates[name].append(float(right.double().mean()))
    drawn = problems(ROWS[0])
    return {name: Success(np.array(rates[name]), mean_rows(drawn, program)) for name, program in compared.items()}


def numbers(part: Part) -> Numbers:
    """Measure and draw what Theorem 3 says, which takes a minute."""
    found = measure()
    draw(found, part.place.folder / "fig1.png")
    drawn = problems(ROWS[0])
    perfect = problems(ROWS[0], error=0.0)
    facts: dict[str, float] = {}
    for name, program in programs(largest_correlation(ERROR)).items():
        facts[f"half {name}"] = found[name].half
        facts[f"predicted {name}"] = found[name].predicted
        facts[f"subgradient {name}"] = mean_subgradient(drawn, program)
        facts[f"perfect {name}"] = mean_rows(perfect, programs(largest_correlation(0.0))[name])
    return facts


# The picture


def draw(found: dict[str, Success], path: Path) -> None:
    """Draw success against rows, rows against the error of the prior, and the subgradient against lambda."""
    with grid(11, 3.4, 1, 3) as (figure, ((success, rows, subgradient),)):
        draw_success(success, found)
        draw_rows(rows, found)
        draw_subgradient(subgradient)
        figure.legend(*success.get_legend_handles_labels(), loc="outside lower center", ncols=len(NAMES))
        save_figure(figure, path, dpi=150)


def draw_success(axes: Axes, found: dict[str, Success]) -> None:
    """How often the programs find the signal, and where the closed form expects half."""
    for name, success in found.items():
        axes.plot(ROWS, success.rates, "o-", color=COLOR_OF[name], label=name)
        axes.axvline(success.predicted, color=COLOR_OF[name], linestyle=":")
    axes.set(
        title=f"error of the prior up to {ERROR:g}; dotted: closed form",
        xlabel="rows of data",
        ylabel="share of the signals that are found",
    )


def draw_rows(axes: Axes, found: dict[str, Success]) -> None:
    """Rows that the programs need, against the error of the prior; circles are measured."""
    errors = np.linspace(0, 2, 21)
    for name, success in found.items():
        needed = [mean_rows(problems(ROWS[0], e), programs(largest_correlation(e))[name]) for e in errors]
        axes.plot(errors, needed, color=COLOR_OF[name])
        axes.plot(ERROR, success.half, "o", markersize=5, markerfacecolor="none", color=COLOR_OF[name])
    axes.axhline(NONZEROS, color="0.5", linewidth=0.8, linestyle="--")
    axes.annotate("non-zeros", (2, NONZEROS), (0, 3), textcoords="offset points", ha="right", color="0.4", fontsize=8)
    axes.set(
        title="closed form; circles: measured",
        xlabel="largest error of the prior",
        ylabel="rows needed for half of the signals",
        ylim=(0, None),
    )


def draw_subgradient(axes: Axes) -> None:
    """The squared subgradient on the support against lambda, and where it is below plain l1's."""
    drawn, lambdas = problems(ROWS[0]), np.linspace(0, 2.2, 45)
    for name in NAMES:
        shares = [mean_subgradient(drawn, programs(float(each))[name]) for each in lambdas]
        axes.plot(lambdas, shares, color=COLOR_OF[name])
    axes.axvspan(0, largest_correlation(ERROR), color="0.92", zorder=0)
    axes.annotate("a solution exists\nfor all rows", (0.04, 1.4), color="0.35", fontsize=8)
    axes.set(
        title="squared subgradient on the support",
        xlabel="$\\lambda / \\gamma$",
        ylabel="$d_{on}$, share of plain l1's",
        xlim=(0, 2.2),
        ylim=(0, None),
    )
