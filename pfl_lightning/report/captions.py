"""What the figures of a comparison show, in words for a paper."""

from collections.abc import Sequence

from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.tails import count_sums, evaluate_training, reference_of
from pfl_lightning.settings import class_name

LATEX = str.maketrans({"\\": r"\textbackslash{}", "±": r"$\pm$", **{sign: f"\\{sign}" for sign in "%_&#$"}})


def time_caption(curves: Sequence[Curve], communication_times: Sequence[float]) -> str:
    """Of ``time_figure``."""
    times = [f"{time:g}" for time in communication_times]
    listed = " and ".join([", ".join(times[:-1]), times[-1]] if len(times) > 1 else times)
    panels = ", from left to right" if len(times) > 1 else ""
    waits = "A round takes as long as its slowest participant computes"
    if any("model.topology" in curve.runs[0].settings for curve in curves):
        waits += " (without a server, clients wait for their neighbours alone)"
    return (
        f"{_score(curves)} against simulated time. {waits}, plus {listed} s of communication{panels}. {_lines(curves)}"
    )


def rounds_caption(curves: Sequence[Curve]) -> str:
    """Of ``rounds_figure``."""
    return f"{_score(curves)} against communication rounds, whatever a round takes or sends. {_lines(curves)}"


def bits_caption(curves: Sequence[Curve]) -> str:
    """Of ``bits_figure``."""
    return (
        f"{_score(curves)} against communication. Left: all that clients send and receive, as it is encoded. Right: "
        "the models over the link of one client, as the mean over the participants of a round, by the formula of "
        f"FedMac (64 bits a value, arXiv:2107.05330). {_lines(curves)}"
    )


def training_caption(curves: Sequence[Curve]) -> str:
    """Of ``training_figure``."""
    return (
        f"{_score(curves)} against the samples of which all clients have taken gradients; a sample counts anew in each "
        f"epoch. {_lines(curves)}"
    )


def errors_caption(curves: Sequence[Curve]) -> str:
    """Of ``error_rounds_figure``."""
    trained = " (top) and training loss, weighted by samples (bottom)" if evaluate_training(curves) else ""
    against = "the sums that the server asks for" if count_sums(curves) else "communication rounds"
    return (
        f"Test {curves[0].quantity.error_name}{trained} of the clients{_where(curves)}: mean (left) and 90th "
        f"percentile (right) over the clients, against {against}. {_lines(curves)}"
    )


def tail_caption(curves: Sequence[Curve]) -> str:
    """Of ``tail_figure``."""
    error = curves[0].quantity.error_name
    bars = " Bands and bars are ± one sample standard deviation over the seeds." if _several(curves) else ""
    return (
        f"Final test {error} of the clients{_where(curves)}. Left: from the best served client to the worst. Right: "
        f"90th percentile against mean over the clients; the grey lines go through {reference_of(curves).label}. "
        f"{_means(curves)}.{bars}"
    )


def clients_caption(curves: Sequence[Curve]) -> str:
    """Of ``clients_figure``."""
    return (
        f"Clients by their final test {curves[0].quantity.error_name}{_and_losses(curves)}{_where(curves)}. Dashed: "
        f"mean over the clients; dotted: 90th percentile (p90). A client's values are {_mean_of_client(curves)}."
    )


def samples_caption(curves: Sequence[Curve]) -> str:
    """Of ``samples_figure``."""
    return (
        f"Final test {curves[0].quantity.error_name}{_and_losses(curves)} of each client{_where(curves)}, against its "
        "number of samples. Dashed: mean over the clients; dotted: 90th percentile (p90). A client's values are "
        f"{_mean_of_client(curves)}."
    )


def cohort_caption(curves: Sequence[Curve]) -> str:
    """Of ``cohort_figure``."""
    bands = ", bands from the smallest to the largest of the seeds" if _several(curves) else ""
    return f"Clients that trained in each round{_where(curves)}. {_means(curves)}{bands}."


def choice_caption(curves: Sequence[Curve], seeds: int) -> str:
    """Of ``choice_figure``."""
    error = curves[0].quantity.error_name
    bars = "; bars are ± one sample standard deviation over the seeds" if seeds > 1 else ""
    return (
        f"Left: mean (filled) and 90th percentile (open) of the clients' test {error}{_where(curves)} under each "
        "model, if each client picks the model with the smallest loss on samples of its own, and if it could choose "
        f"by its test samples. Right: which model clients pick, by the percentile of their {error} under "
        f"{reference_of(curves).label}. Means over {_seeds([seeds])}{bars}."
    )


def latex(name: str, caption: str) -> str:
    """A figure of LaTeX with a caption.

    Args:
        name: Name of its file, without the ending.
        caption: The caption.
    """
    return "\n".join(
        (
            r"\begin{figure}",
            r"  \centering",
            rf"  \includegraphics[width=\linewidth]{{{name}}}",
            rf"  \caption{{{caption.translate(LATEX)}}}",
            rf"  \label{{fig:{name}}}",
            r"\end{figure}",
        )
    )


# Parts of captions


def _score(curves: Sequence[Curve]) -> str:
    return f"Test {curves[0].quantity.name} as the mean over the clients{_where(curves)},"


def _where(curves: Sequence[Curve]) -> str:
    """The data, and the number of clients if it is a setting."""
    settings = curves[0].runs[0].settings
    clients = settings.get("data.num_clients")
    return f" on {class_name(str(settings['data']))}" + (f" with {clients} clients" if clients else "")


def _lines(curves: Sequence[Curve]) -> str:
    bands = "; bands are ± one sample standard deviation over the seeds" if _several(curves) else ""
    return f"{_means(curves)}{bands}. {_evaluations(curves)}".rstrip()


def _means(curves: Sequence[Curve]) -> str:
    return f"Lines are means over {_seeds([len(curve.runs) for curve in curves])}"


def _mean_of_client(curves: Sequence[Curve]) -> str:
    return f"means over {_seeds([len(curve.runs) for curve in curves])}"


def _seeds(numbers: Sequence[int]) -> str:
    few, many = min(numbers), max(numbers)
    return ("one seed" if few == 1 else f"{few} seeds") if few == many else f"{few} to {many} seeds"


def _several(curves: Sequence[Curve]) -> bool:
    return any(len(curve.runs) > 1 for curve in curves)


def _and_losses(curves: Sequence[Curve]) -> str:
    return " and training loss" if evaluate_training(curves) else ""


def _evaluations(curves: Sequence[Curve]) -> str:
    """How often clients are evaluated, if all curves agree; a score is only known there."""
    (interval, *others) = {curve.runs[0].settings.get("trainer.val_check_interval") for curve in curves}
    if others or not isinstance(interval, int):
        return ""
    return "Clients are evaluated after every round." if interval == 1 else f"Evaluations are {interval} rounds apart."
