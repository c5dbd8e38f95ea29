"""All figures of a comparison, with their captions."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from pfl_lightning.report.captions import caption_of, latex
from pfl_lightning.report.choice import Choice
from pfl_lightning.report.client_figures import clients_figure, samples_figure
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.compare_figures import (
    bits_figure,
    cohort_figure,
    cohorts_differ,
    rounds_figure,
    time_figure,
    training_figure,
)
from pfl_lightning.report.compare_runs import BITS, LINK_BITS, SAMPLES
from pfl_lightning.report.drawing import save_figure
from pfl_lightning.report.tail_figures import choice_figure, error_rounds_figure, tail_figure


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
    yield Picture("accuracy_time", time, caption_of("accuracy_time", curves, communication_times))
    for name, draw, can_draw in (
        ("accuracy_rounds", rounds_figure, True),
        ("accuracy_bits", bits_figure, all(curve.counts(BITS, LINK_BITS) for curve in curves)),
        ("accuracy_samples", training_figure, all(curve.counts(SAMPLES) for curve in curves)),
        ("errors_rounds", error_rounds_figure, True),
        ("tail", tail_figure, True),
        ("clients", clients_figure, True),
        ("samples", samples_figure, True),
        ("cohort", cohort_figure, cohorts_differ(curves)),
    ):
        if can_draw:
            yield Picture(name, draw(curves), caption_of(name, curves))
    if choice:
        caption = caption_of("choice", curves, common_seeds=len(choice.seeds))
        yield Picture("choice", choice_figure(choice), caption)


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
        save_figure(figure, *(out / f"{name}.{ending}" for ending in formats))
        code = latex(name, caption)
        sections.append(f"## {name}\n\n![{name}]({name}.{shown})\n\n{caption}\n\n```latex\n{code}\n```\n")
    (out / "figures.md").write_text("\n".join(sections))
