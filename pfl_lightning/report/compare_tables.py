"""Tables of curves: the clients' final scores and errors, how soon scores were reached, and what that has cost."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np

from pfl_lightning.quantity import LOSS, Quantity
from pfl_lightning.report.client_table import Floats
from pfl_lightning.report.compare_curves import Curve, without_doubling
from pfl_lightning.report.compare_runs import BITS, SAMPLES
from pfl_lightning.report.tables import (
    OVER_SEEDS,
    Row,
    Rows,
    Table,
    bit_unit,
    markdown,
    over_seeds,
    sample_unit,
    seeds_markdown,
)
from pfl_lightning.report.tails import TEST, TRAIN, differences, evaluate_training, reference_of

BETWEEN = "from the evaluation before to the first that has it, mean over seeds"
SHARES = (0.9, 0.95, 0.99)  # of the best final score, for targets
SPREAD: dict[str, Callable[[Floats, Quantity], float]] = {
    "mean": lambda scores, _: scores.mean(),
    "std over clients": lambda scores, _: scores.std(),
    "worst": lambda scores, quantity: scores.min() if quantity.higher_is_better else scores.max(),
    "p10": lambda scores, _: np.percentile(scores, 10),
    "p50": lambda scores, _: np.percentile(scores, 50),
    "p90": lambda scores, _: np.percentile(scores, 90),
}
COMPARED = ("mean", "p90", "superquantile 10 %")  # with the reference


class Cost(NamedTuple):
    """What can be counted up to each evaluation, beside simulated time.

    Attributes:
        name: Name in files and columns.
        words: What is counted, in words.
        unit: A unit for counts up to the largest: its size, and its name.
        tag: The logged count, which older runs lack; empty for rounds.
    """

    name: str
    words: str
    unit: Callable[[float], tuple[float, str]]
    tag: str = ""

    def of(self, curve: Curve) -> Floats:
        """The count of a curve, ``[seeds, evaluations]``."""
        return curve.until(self.tag) if self.tag else np.tile(curve.rounds.astype(float), (len(curve.runs), 1))

    def known(self, curves: Sequence[Curve]) -> bool:
        """Whether all curves have the count."""
        return not self.tag or all(curve.counts(self.tag) for curve in curves)


ROUNDS = Cost("rounds", "communication rounds", lambda largest: (1.0, "rounds"))
COMMUNICATION = Cost("bits", "communication of all clients", bit_unit, BITS)
TRAINING = Cost("samples", "samples trained on by all clients", sample_unit, SAMPLES)
COSTS = (ROUNDS, COMMUNICATION, TRAINING)


def tables_of(
    curves: Sequence[Curve], communication_times: Sequence[float], targets: Sequence[float] = ()
) -> Iterator[Table]:
    """Make what tables the runs allow.

    Args:
        curves: Curves on the same data.
        communication_times: Simulated seconds that the communication of a round takes.
        targets: Scores; by default ``usual_targets``.
    """
    targets = targets or usual_targets(curves)
    yield final_table(curves)
    yield time_table(curves, targets, communication_times)
    yield error_table(curves)
    if all(curve.logs_losses() for curve in curves):
        yield convergence_table(curves, communication_times)
    yield from (cost_table(curves, targets, cost) for cost in COSTS if cost.known(curves))


# The clients at the last evaluation


def final_table(curves: Sequence[Curve]) -> Table:
    """How the scores are spread over the clients at the last evaluation, never at the best one.

    Args:
        curves: Curves on the same data.

    Returns:
        For each curve ``mean``, ``std over clients`` (of the population), ``worst``, ``p10``, ``p50`` and ``p90``
        (interpolated), each as the mean over the seeds, and as ``<name>_seed_std`` its sample standard deviation over
        the seeds, nan for one seed.
    """
    quantity, rows = curves[0].quantity, []
    for curve in curves:
        values = {name: [of(scores, quantity) for scores in curve.final_scores] for name, of in SPREAD.items()}
        rows.append(_about(curve) | over_seeds(values))
    title = f"Clients' test {quantity.name}{quantity.unit} at the last evaluation, {OVER_SEEDS}"
    return Table("final", rows, seeds_markdown(title, rows, SPREAD, quantity, first=("method", "seeds", "round")))


def error_table(curves: Sequence[Curve]) -> Table:
    """The clients' test errors (or losses) at the last evaluation, and their training losses if these were evaluated.

    Args:
        curves: Curves on the same data.

    Returns:
        For each curve the statistics of ``tails.TEST``; ``<name> difference``, the same minus that of the
        ``reference``, over the seeds that both have; and ``train loss mean`` and ``train loss p90``, weighted by
        samples. Each is a mean over the seeds, with its sample standard deviation as ``<name>_seed_std``, nan for one
        seed.
    """
    quantity, reference, trained = curves[0].quantity, reference_of(curves), evaluate_training(curves)
    rows = []
    for curve in curves:
        row = _about(curve)
        row |= over_seeds({name: map(statistic, curve.final_errors) for name, statistic in TEST.items()})
        row["reference"] = reference.label
        row |= over_seeds({f"{name} difference": differences(curve, reference, TEST[name]) for name in COMPARED})
        if trained:
            row |= over_seeds({f"train loss {name}": map(each, curve.final("train")) for name, each in TRAIN.items()})
        rows.append(row)
    what = f"Clients' test {quantity.error_name}{quantity.unit}"
    texts = [seeds_markdown(f"{what} at the last evaluation, {OVER_SEEDS}", rows, TEST, quantity)]
    if others := [row for row in rows if row["method"] != reference.label]:
        title = f"{what} minus that of {reference.label} with the same seed, {OVER_SEEDS}"
        texts.append(seeds_markdown(title, others, COMPARED, quantity, key="{} difference", sign="+"))
    if trained:
        title = f"Clients' training loss, weighted by their samples, {OVER_SEEDS}"
        texts.append(seeds_markdown(title, rows, TRAIN, LOSS, key="train loss {}"))
    return Table("errors", rows, "\n".join(texts))


# What was spent until a score was reached


def usual_targets(curves: Sequence[Curve]) -> list[float]:
    """90, 95 and 99 % of the best final mean score among the methods without stage doubling, or among all."""
    plain = [curve for curve in curves if not curve.doubled] or curves
    finals = [float(curve.means[:, -1].mean()) for curve in plain]
    if curves[0].quantity.higher_is_better:
        return [share * max(finals) for share in SHARES]
    return [min(finals) / share for share in SHARES]


def time_table(curves: Sequence[Curve], targets: Sequence[float], communication_times: Sequence[float]) -> Table:
    """Simulated seconds until the mean score of the clients was first as good as a target, at an evaluation.

    Args:
        curves: Curves on the same data.
        targets: Scores.
        communication_times: Simulated seconds that the communication of a round takes.

    Returns:
        For each target, curve and communication time: ``seconds`` and the rest as in ``cost_table``; and ``ratio``,
        seconds over those of the same method without doubling, nan where there is none. The text has a row for each
        target and curve, and a column for each communication time.
    """
    quantity, rows = curves[0].quantity, []
    for target in targets:
        for curve in curves:
            plain = without_doubling(curve, curves)
            for time in communication_times:
                row: Row = {"target": target, "method": curve.label, "communication_time": time}
                row |= _spent(curve, target, curve.times(time), "seconds")
                reference = float(plain.seconds_to(target, time).mean()) if plain else nan
                rows.append(row | {"ratio": row["seconds"] / reference if reference > 0 else nan})
    lines: dict[tuple[float, str], list[str]] = {}
    for row in rows:
        ratio = "" if isnan(row["ratio"]) else f" ({row['ratio']:.2f})"
        between = _interval(row["after_seconds"], row["seconds"], _seconds)
        lines.setdefault((row["target"], row["method"]), []).append(_if_reached(row, between + ratio))
    cells = [(quantity.show(target), method, *times) for (target, method), times in lines.items()]
    title = (
        f"Simulated seconds to a mean test {quantity.name}: {BETWEEN} "
        "(ratio of the latter to that of the same method without stage doubling)"
    )
    columns = f"{quantity.name}{quantity.unit}", "method", *_time_columns(communication_times)
    return Table("time_to_accuracy", rows, markdown(title, columns, cells))


def cost_table(curves: Sequence[Curve], targets: Sequence[float], cost: Cost) -> Table:
    """What was spent until the mean score of the clients was first as good as a target, at an evaluation.

    Args:
        curves: Curves that count it.
        targets: Scores.
        cost: What is counted, such as bits.

    Returns:
        For each target and curve: the cost under its name, the mean over the seeds, nan unless all reach the target;
        with ``after_`` before the name, the same of the evaluations before, when the target was not reached; and
        ``reached``, how many seeds reach it.
    """
    quantity = curves[0].quantity
    rows: Rows = [
        {"target": target, "method": curve.label} | _spent(curve, target, cost.of(curve), cost.name)
        for target in targets
        for curve in curves
    ]
    size, unit = cost.unit(max((row[cost.name] for row in rows if not isnan(row[cost.name])), default=0.0))
    cells = [
        (
            quantity.show(row["target"]),
            row["method"],
            _if_reached(row, _interval(row[f"after_{cost.name}"] / size, row[cost.name] / size, "{:.4g}".format)),
        )
        for row in rows
    ]
    title = f"{cost.words.capitalize()} to a mean test {quantity.name}: {BETWEEN}"
    text = markdown(title, (f"{quantity.name}{quantity.unit}", "method", unit), cells)
    return Table(f"{cost.name}_to_accuracy", rows, text)


def convergence_table(curves: Sequence[Curve], communication_times: Sequence[float]) -> Table:
    """Simulated seconds until the training loss has all but stopped to fall, see ``converged_round``.

    Args:
        curves: Curves that log the training loss of every round.
        communication_times: Simulated seconds that the communication of a round takes.

    Returns:
        For each curve and communication time: ``round`` and ``seconds``, the means over the seeds, nan unless all
        converge; and ``reached``, how many do. The text has a row for each curve, and a column for each communication
        time.
    """
    rows: Rows = [
        {
            "method": curve.label,
            "round": float(curve.rounds_to_convergence.mean()),
            "communication_time": time,
            "seconds": float(curve.seconds_to_convergence(time).mean()),
            "reached": int(np.isfinite(curve.rounds_to_convergence).sum()),
            "seeds": len(curve.runs),
        }
        for curve in curves
        for time in communication_times
    ]
    lines: dict[str, list[str]] = {}
    for row in rows:
        line = lines.setdefault(row["method"], [_if_reached(row, f"{row['round']:.4g}")])
        line.append(_if_reached(row, _seconds(row["seconds"])))
    title = "Round, and simulated seconds, at which the training loss has converged, mean over seeds"
    cells = [(method, *line) for method, line in lines.items()]
    text = markdown(title, ("method", "round", *_time_columns(communication_times)), cells)
    return Table("convergence", rows, text)


def _about(curve: Curve) -> Row:
    return {"method": curve.label, "seeds": len(curve.runs), "round": int(curve.rounds[-1])}


def _spent(curve: Curve, target: float, costs: Floats, name: str) -> Row:
    """Cells for what a target has cost, out of what each evaluation has cost, ``[seeds, evaluations]``."""
    before, spent = curve.reach(target, costs)
    row: Row = {f"after_{name}": float(before.mean()), name: float(spent.mean())}
    return row | {"reached": int(np.isfinite(spent).sum()), "seeds": len(spent)}


def _time_columns(communication_times: Sequence[float]) -> list[str]:
    return [f"communication {time:g} s" for time in communication_times]


def _if_reached(row: Mapping[str, Any], text: str) -> str:
    """What to say of a cost: nothing, unless all seeds reach the target."""
    if row["reached"] == row["seeds"]:
        return text
    return f"- ({row['reached']}/{row['seeds']} seeds)" if row["reached"] else "-"


def _interval(after: float, by: float, show: Callable[[float], str]) -> str:
    """The ends of an interval; a single number where they look the same."""
    return show(by) if show(after) == show(by) else f"{show(after)} to {show(by)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"
