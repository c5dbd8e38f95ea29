"""All figures of a comparison, with their captions."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from matplotlib.figure import Figure

from pfl_lightning.errors import PflError
from pfl_lightning.report.captions import CAPTIONS, caption_of, latex
from pfl_lightning.report.choice import Choice
from pfl_lightning.report.client_figures import clients_figure, samples_figure
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.compare_figures import (
    cohort_figure,
    cohorts_differ,
    cost_figure,
    error_rounds_figure,
    time_figure,
)
from pfl_lightning.report.costs import COMMUNICATION, LINK, ROUNDS, TRAINING
from pfl_lightning.report.drawing import save_figure
from pfl_lightning.report.tail_figures import choice_figure, tail_figure

Format = Literal["png", "pdf", "svg"]
HEAD = "# Figures\n\nEach with its caption, in plain text and for LaTeX.\n"  # of figures.md
Picture = tuple[str, Figure, str]
"""The name of a figure's files without their ending, the figure, and its caption."""


def pictures_of(
    curves: Sequence[Curve], communication_times: Sequence[float], choice: Choice | None = None
) -> Iterator[Picture]:
    """Draw what the runs allow.

    Args:
        curves: Curves on the same data.
        communication_times: Simulated seconds that the communication of a round takes, one panel each.
        choice: What clients pick among the curves, if they can choose.
    """

    def picture(name: str, figure: Figure) -> Picture:
        return name, figure, caption_of(name, curves, communication_times)

    yield picture("accuracy_time", time_figure(curves, communication_times))
    yield picture("accuracy_rounds", cost_figure(curves, ROUNDS))
    if COMMUNICATION.known(curves) and LINK.known(curves):
        yield picture("accuracy_bits", cost_figure(curves, COMMUNICATION, LINK))
    if TRAINING.known(curves):
        yield picture("accuracy_samples", cost_figure(curves, TRAINING))
    yield picture("errors_rounds", error_rounds_figure(curves))
    yield picture("tail", tail_figure(curves))
    yield picture("clients", clients_figure(curves))
    yield picture("samples", samples_figure(curves))
    if cohorts_differ(curves):
        yield picture("cohort", cohort_figure(curves))
    if choice:
        yield "choice", choice_figure(choice), caption_of("choice", curves, common_seeds=len(choice.seeds))


def has_pictures(out: Path) -> bool:
    """Whether a folder has the figures of an earlier comparison.

    Raises:
        PflError: If it has a ``figures.md`` of someone else.
    """
    captions = out / "figures.md"
    if captions.exists() and not captions.read_text(errors="replace").startswith(HEAD):
        raise PflError(f"out: '{captions}' is not of pfl compare; allowed: another folder")
    return captions.exists()


def write_pictures(pictures: Iterator[Picture], formats: Sequence[Format], out: Path) -> None:
    """Write each figure in each format, and all captions to ``figures.md``, in the place of those that are there.

    Args:
        pictures: The figures.
        formats: Endings of files, such as ``pdf``.
        out: The folder.

    Raises:
        PflError: If the folder has a ``figures.md`` of someone else.
    """
    shown = "png" if "png" in formats else formats[0]
    if has_pictures(out):
        for name, ending in product(CAPTIONS, get_args(Format)):
            (out / f"{name}.{ending}").unlink(missing_ok=True)
    sections = [HEAD]
    for name, figure, caption in pictures:
        save_figure(figure, *(out / f"{name}.{ending}" for ending in formats))
        code = latex(name, caption)
        sections.append(f"## {name}\n\n![{name}]({name}.{shown})\n\n{caption}\n\n```latex\n{code}\n```\n")
    (out / "figures.md").write_text("\n".join(sections))
