"""All figures of a comparison, with their captions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from pfl_lightning.report import captions
from pfl_lightning.report.choice import Choice
from pfl_lightning.report.client_figures import clients_figure, samples_figure
from pfl_lightning.report.compare_costs import COMMUNICATION, TRAINING
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.compare_figures import (
    bits_figure,
    cohort_figure,
    cohorts_differ,
    rounds_figure,
    time_figure,
    training_figure,
)
from pfl_lightning.report.compare_runs import LINK_BITS
from pfl_lightning.report.drawing import save_figure
from pfl_lightning.report.tail_figures import choice_figure, error_rounds_figure, tail_figure

CAPTIONS = "figures.md"


class Picture(NamedTuple):
    """A figure for a paper.

    Attributes:
        name: Name of its files, without their ending.
        figure: The figure.
        caption: What it shows.
    """

    name: str
    figure: Figure
    caption: str


def pictures_of(
    curves: Sequence[Curve], communication_times: Sequence[float], choice: Choice | None = None
) -> Iterator[Picture]:
    """Draw what the runs allow.

    Args:
        curves: Curves on the same data.
        communication_times: Simulated seconds that the communication of a round takes, one panel each.
        choice: What clients pick among the curves, if they can choose.
    """
    time = time_figure(curves, communication_times)
    yield Picture("accuracy_time", time, captions.time_caption(curves, communication_times))
    yield Picture("accuracy_rounds", rounds_figure(curves), captions.rounds_caption(curves))
    if COMMUNICATION.known(curves) and all(curve.counts(LINK_BITS) for curve in curves):
        yield Picture("accuracy_bits", bits_figure(curves), captions.bits_caption(curves))
    if TRAINING.known(curves):
        yield Picture("accuracy_samples", training_figure(curves), captions.training_caption(curves))
    yield Picture("errors_rounds", error_rounds_figure(curves), captions.errors_caption(curves))
    yield Picture("tail", tail_figure(curves), captions.tail_caption(curves))
    yield Picture("clients", clients_figure(curves), captions.clients_caption(curves))
    yield Picture("samples", samples_figure(curves), captions.samples_caption(curves))
    if cohorts_differ(curves):
        yield Picture("cohort", cohort_figure(curves), captions.cohort_caption(curves))
    if choice:
        yield Picture("choice", choice_figure(choice), captions.choice_caption(curves, len(choice.seeds)))


def write_pictures(pictures: Iterator[Picture], formats: Sequence[str], out: Path) -> None:
    """Write each figure in each format, and all captions to ``figures.md``.

    Args:
        pictures: The figures.
        formats: Endings of files, such as ``pdf``.
        out: The folder.
    """
    shown = "png" if "png" in formats else formats[0]
    sections = ["# Figures\n\nEach with its caption, in plain text and for LaTeX.\n"]
    for name, figure, caption in pictures:
        for ending in formats:
            save_figure(figure, out / f"{name}.{ending}")
        code = captions.latex(name, caption)
        sections.append(f"## {name}\n\n![{name}]({name}.{shown})\n\n{caption}\n\n```latex\n{code}\n```\n")
    (out / CAPTIONS).write_text("\n".join(sections))
