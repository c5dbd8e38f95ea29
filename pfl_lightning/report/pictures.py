"""All figures of a comparison, and their captions in words for a paper."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from matplotlib.figure import Figure

from pfl_lightning.errors import PflError
from pfl_lightning.report.choice import Choice
from pfl_lightning.report.client_figures import choice_figure, clients_figure, samples_figure, tail_figure
from pfl_lightning.report.compare_curves import Curves
from pfl_lightning.report.compare_figures import (
    cohort_figure,
    cohorts_differ,
    cost_figure,
    error_rounds_figure,
    time_figure,
)
from pfl_lightning.report.drawing import save_figure
from pfl_lightning.report.measures import (
    COMMUNICATION,
    LINK,
    ROUNDS,
    TRAINING,
    count_sums,
    evaluate_training,
    reference_of,
)
from pfl_lightning.report.run_files import WITHOUT_ROUNDS
from pfl_lightning.report.tables import latex_text, shown_as_is
from pfl_lightning.settings.values import class_name

Format = Literal["png", "pdf", "svg"]
HEAD = "# Figures\n\nEach with its caption, in plain text and for LaTeX.\n"  # of figures.md
SOMETIMES = ("convergence", "bits_to_accuracy", "samples_to_accuracy", "choice", "choice_groups")  # not of all runs
Picture = tuple[str, Figure, str]
"""The name of a figure's files without their ending, the figure, and its caption."""


def pictures_of(
    curves: Curves, communication_times: Sequence[float], choice: Choice | None = None
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
    if COMMUNICATION.known(curves):
        yield picture("accuracy_bits", cost_figure(curves, COMMUNICATION, *[LINK] * LINK.known(curves)))
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


def clear(out: Path) -> None:
    """Remove the figures, and the tables that not all runs have, of an earlier comparison in a folder.

    Raises:
        PflError: If it has a ``figures.md`` of someone else.
    """
    captions = out / "figures.md"
    if not captions.exists():
        return
    if not captions.read_text(errors="replace").startswith(HEAD):
        raise PflError(f"out: '{captions}' was not written by pfl compare; choose another folder")
    for name, ending in (*product(CAPTIONS, get_args(Format)), *product(SOMETIMES, ("csv", "md"))):
        (out / f"{name}.{ending}").unlink(missing_ok=True)


def write_pictures(pictures: Iterator[Picture], formats: Sequence[Format], out: Path) -> None:
    """Write each figure in each format, and all captions to ``figures.md``.

    Args:
        pictures: The figures.
        formats: Endings of files, such as ``pdf``.
        out: The folder.
    """
    ending = "png" if "png" in formats else formats[0]
    sections = [HEAD]
    for name, figure, caption in pictures:
        save_figure(figure, *(out / f"{name}.{suffix}" for suffix in formats))
        code = latex(name, caption)
        sections.append(f"## {name}\n\n![{name}]({name}.{ending})\n\n{shown_as_is(caption)}\n\n```latex\n{code}\n```\n")
    (out / "figures.md").write_text("\n".join(sections))


LINK_WORDS = (
    " (left), and the models over the link of one client (right), as the mean over the participants of a round, by the "
    "formula of FedMac (64 bits a value, arXiv:2107.05330)"
)
CAPTIONS = {  # by the name of the figure
    "accuracy_time": "{score} against simulated time. A round takes as long as its slowest participant "
    "computes{alone}, plus {times} s of communication{panels}. {lines}",
    "accuracy_rounds": "{score} against communication rounds, whatever a round takes or sends. {lines}",
    "accuracy_bits": "{score} against communication: all that clients send and receive, as it is encoded{link}. "
    "{lines}",
    "accuracy_samples": "{score} against the samples of which all clients have taken gradients; a sample counts anew "
    "in each epoch. {lines}",
    "errors_rounds": "Test {error}{rows} of the clients{where}: mean (left) and 90th percentile (right) over the "
    "clients, against {sums}. {lines}",
    "tail": "Final test {error} of the clients{where}. Left: from the best served client to the worst. Right: 90th "
    "percentile against mean over the clients; the grey lines go through {reference}. Lines are {means}.{bars}",
    "clients": "Clients by their final test {error}{losses}{where}. Dashed: mean over the clients; dotted: 90th "
    "percentile (p90). A client's values are {means}.",
    "samples": "Final test {error}{losses} of each client{where}, against its number of samples. Dashed: mean over the "
    "clients; dotted: 90th percentile (p90). A client's values are {means}.",
    "cohort": "Clients that trained in each round{where}. Lines are {means}{range}.",
    "choice": "Left: mean (filled) and 90th percentile (open) of the clients' test {error}{where} under each model, if "
    "each client picks the model with the smallest loss on samples of its own, and if it could choose by its test "
    "samples. Right: which model clients pick, by the percentile of their {error} under {reference}. Means over "
    "{seeds}{deviation}.",
}


def caption_of(
    name: str, curves: Curves, communication_times: Sequence[float] = (0.0,), common_seeds: int | None = None
) -> str:
    """The caption of a figure.

    Args:
        name: Name of the figure.
        curves: The curves that it shows.
        communication_times: Those of its panels.
        common_seeds: Number of seeds over which means are taken; by default those of each curve.
    """
    numbers = [common_seeds] if common_seeds else [len(curve.runs) for curve in curves]
    score_kind = curves[0].score_kind
    seeds = _seeds(numbers)
    several = max(numbers) > 1
    deviation = "± one sample standard deviation over the seeds"
    means = f"means over {seeds}"
    has_training = evaluate_training(curves)
    where = _where(curves)
    words = {
        "score": f"Test {score_kind.name} as the mean over the clients{where},",
        "error": score_kind.error_name,
        "where": where,
        "alone": _exceptions(curves),
        "times": _listed([f"{time:g}" for time in communication_times]),
        "panels": ", from left to right" if len(communication_times) > 1 else "",
        "lines": f"Lines are {means}{f'; bands are {deviation}' if several else ''}. {_evaluations(curves)}",
        "means": means,
        "seeds": seeds,
        "bars": f" Bands and bars are {deviation}." if several else "",
        "deviation": f"; bars are {deviation}" if several else "",
        "range": ", bands from the smallest to the largest of the seeds" if several else "",
        "rows": " (top) and training loss, weighted by samples (bottom)" if has_training else "",
        "losses": " and training loss" if has_training else "",
        "sums": "the sums that the server asks for" if count_sums(curves) else "communication rounds",
        "reference": reference_of(curves).label,
        "link": LINK_WORDS if LINK.known(curves) else "",
    }
    return CAPTIONS[name].format(**words).rstrip()


def latex(name: str, caption: str) -> str:
    """A figure of LaTeX with a caption.

    Args:
        name: Name of its file, without the ending.
        caption: The caption.
    """
    return rf"""\begin{{figure}}
  \centering
  \includegraphics[width=\linewidth]{{{name}}}
  \caption{{{latex_text(caption)}}}
  \label{{fig:{name}}}
\end{{figure}}"""


def _where(curves: Curves) -> str:
    """The data, and the number of clients if it is a setting."""
    settings = curves[0].runs[0].settings
    clients = settings.get("data.num_clients")
    return f" on {class_name(str(settings['data']))}" + (f" with {clients} clients" if clients else "")


def _exceptions(curves: Curves) -> str:
    settings = [curve.runs[0].settings for curve in curves]
    text = ""
    if any("model.topology" in setting for setting in settings):
        text += " (without a server, clients wait for their neighbours alone)"
    if any(class_name(str(setting.get("data.participation"))) == WITHOUT_ROUNDS for setting in settings):
        text += " (where nobody waits, an update comes with its last upload, at that run's own time of communication)"
    return text


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _seeds(numbers: Sequence[int]) -> str:
    if min(numbers) < max(numbers):
        return f"{min(numbers)} to {max(numbers)} seeds"
    return "one seed" if numbers[0] == 1 else f"{numbers[0]} seeds"


def _evaluations(curves: Curves) -> str:
    """How often clients are evaluated, if all curves agree; a score is only known there."""
    intervals = {curve.runs[0].settings.get("trainer.val_check_interval") for curve in curves}
    interval = intervals.pop()
    if intervals or not isinstance(interval, int):
        return ""
    return "Clients are evaluated after every round." if interval == 1 else f"Evaluations are {interval} rounds apart."
