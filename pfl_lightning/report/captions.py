"""What the figures of a comparison show, in words for a paper."""

from collections.abc import Sequence

from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.compare_runs import WITHOUT_ROUNDS
from pfl_lightning.report.tails import count_sums, evaluate_training, reference_of
from pfl_lightning.settings.values import class_name

SIGNS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
LATEX = str.maketrans({**SIGNS, **{sign: f"\\{sign}" for sign in "%_&#${}"}})
CAPTIONS = {  # by the name of the figure
    "accuracy_time": "{score} against simulated time. A round takes as long as its slowest participant "
    "computes{alone}, plus {times} s of communication{panels}. {lines}",
    "accuracy_rounds": "{score} against communication rounds, whatever a round takes or sends. {lines}",
    "accuracy_bits": "{score} against communication. Left: all that clients send and receive, as it is encoded. Right: "
    "the models over the link of one client, as the mean over the participants of a round, by the formula of FedMac "
    "(64 bits a value, arXiv:2107.05330). {lines}",
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
    name: str, curves: Sequence[Curve], communication_times: Sequence[float] = (0.0,), common_seeds: int | None = None
) -> str:
    """The caption of a figure.

    Args:
        name: Name of the figure.
        curves: The curves that it shows.
        communication_times: Those of its panels.
        common_seeds: Number of seeds over which means are taken; by default those of each curve.
    """
    numbers = [common_seeds] if common_seeds else [len(curve.runs) for curve in curves]
    score_kind, seeds, several = curves[0].score_kind, _seeds(numbers), max(numbers) > 1
    deviation, over = "± one sample standard deviation over the seeds", f"means over {seeds}"
    trained, where = evaluate_training(curves), _where(curves)
    words = {
        "score": f"Test {score_kind.name} as the mean over the clients{where},",
        "error": score_kind.error_name,
        "where": where,
        "alone": _exceptions(curves),
        "times": _listed([f"{time:g}" for time in communication_times]),
        "panels": ", from left to right" if len(communication_times) > 1 else "",
        "lines": f"Lines are {over}{f'; bands are {deviation}' if several else ''}. {_evaluations(curves)}",
        "means": over,
        "seeds": seeds,
        "bars": f" Bands and bars are {deviation}." if several else "",
        "deviation": f"; bars are {deviation}" if several else "",
        "range": ", bands from the smallest to the largest of the seeds" if several else "",
        "rows": " (top) and training loss, weighted by samples (bottom)" if trained else "",
        "losses": " and training loss" if trained else "",
        "sums": "the sums that the server asks for" if count_sums(curves) else "communication rounds",
        "reference": reference_of(curves).label,
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
  \caption{{{caption.translate(LATEX)}}}
  \label{{fig:{name}}}
\end{{figure}}"""


def _where(curves: Sequence[Curve]) -> str:
    """The data, and the number of clients if it is a setting."""
    settings = curves[0].runs[0].settings
    clients = settings.get("data.num_clients")
    return f" on {class_name(str(settings['data']))}" + (f" with {clients} clients" if clients else "")


def _exceptions(curves: Sequence[Curve]) -> str:
    settings = [curve.runs[0].settings for curve in curves]
    found = ""
    if any("model.topology" in each for each in settings):
        found += " (without a server, clients wait for their neighbours alone)"
    if any(class_name(str(each.get("data.participation"))) == WITHOUT_ROUNDS for each in settings):
        found += " (where nobody waits, an update comes with its last upload, at that run's own time of communication)"
    return found


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _seeds(numbers: Sequence[int]) -> str:
    few, many = min(numbers), max(numbers)
    return ("one seed" if few == 1 else f"{few} seeds") if few == many else f"{few} to {many} seeds"


def _evaluations(curves: Sequence[Curve]) -> str:
    """How often clients are evaluated, if all curves agree; a score is only known there."""
    (interval, *others) = {curve.runs[0].settings.get("trainer.val_check_interval") for curve in curves}
    if others or not isinstance(interval, int):
        return ""
    return "Clients are evaluated after every round." if interval == 1 else f"Evaluations are {interval} rounds apart."
