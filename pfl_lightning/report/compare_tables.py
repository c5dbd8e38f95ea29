"""Tables of curves: the clients' final scores, and how soon they were reached."""

from collections.abc import Callable, Mapping, Sequence
from math import isnan, nan
from typing import Any

import numpy as np

from pfl_lightning.quantity import Quantity
from pfl_lightning.report.client_table import Floats
from pfl_lightning.report.compare_costs import Cost
from pfl_lightning.report.compare_curves import Curve, without_doubling
from pfl_lightning.report.tables import OVER_SEEDS, Rows, markdown, over_seeds, with_spread

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


def final_rows(curves: Sequence[Curve]) -> Rows:
    """How the scores are spread over the clients at the last evaluation, never at the best one.

    Args:
        curves: Curves on the same data.

    Returns:
        For each curve ``mean``, ``std over clients`` (of the population), ``worst``, ``p10``, ``p50`` and ``p90``
        (interpolated), each as the mean over the seeds, and as ``<name>_seed_std`` its sample standard deviation over
        the seeds, nan for one seed.
    """
    rows = []
    for curve in curves:
        row = {"method": curve.label, "seeds": len(curve.runs), "round": int(curve.rounds[-1])}
        for name, statistic in SPREAD.items():
            row |= over_seeds(name, (statistic(scores, curve.quantity) for scores in curve.final_scores))
        rows.append(row)
    return rows


def final_markdown(rows: Rows, quantity: Quantity) -> str:
    """The table of ``final_rows``."""
    cells = [
        (row["method"], row["seeds"], row["round"], *(with_spread(row, name, quantity) for name in SPREAD))
        for row in rows
    ]
    title = f"Clients' test {quantity.name}{quantity.unit} at the last evaluation, {OVER_SEEDS}"
    return markdown(title, ("method", "seeds", "round", *SPREAD), cells)


def usual_targets(curves: Sequence[Curve]) -> list[float]:
    """90, 95 and 99 % of the best final mean score among the methods without stage doubling, or among all."""
    plain = [curve for curve in curves if not curve.doubled] or curves
    finals = [float(curve.means[:, -1].mean()) for curve in plain]
    if curves[0].quantity.higher_is_better:
        return [share * max(finals) for share in SHARES]
    return [min(finals) / share for share in SHARES]


def time_rows(curves: Sequence[Curve], targets: Sequence[float], communication_times: Sequence[float]) -> Rows:
    """Simulated seconds until the mean score of the clients was first as good as a target, at an evaluation.

    Args:
        curves: Curves on the same data.
        targets: Scores.
        communication_times: Simulated seconds that the communication of a round takes.

    Returns:
        For each target, curve and communication time: ``seconds``, the mean over the seeds, nan unless all reach the
        target; ``after_seconds``, the same of the evaluations before, when the target was not reached; ``reached``, how
        many seeds reach it; and ``ratio``, seconds over those of the same method without doubling, nan where there is
        none.
    """
    rows = []
    for target in targets:
        for curve in curves:
            plain = without_doubling(curve, curves)
            for communication_time in communication_times:
                before, times = curve.reach(target, curve.times(communication_time))
                reference = plain.seconds_to(target, communication_time).mean() if plain else nan
                rows.append(
                    {
                        "target": target,
                        "method": curve.label,
                        "communication_time": communication_time,
                        "after_seconds": float(before.mean()),
                        "seconds": float(times.mean()),
                        "reached": int(np.isfinite(times).sum()),
                        "seeds": len(times),
                        "ratio": float(times.mean() / reference) if reference > 0 else nan,
                    }
                )
    return rows


def time_markdown(rows: Rows, quantity: Quantity) -> str:
    """The table of ``time_rows``: a row for each target and curve, a column for each communication time."""
    lines: dict[tuple[float, str], list[str]] = {}
    for row in rows:
        lines.setdefault((row["target"], row["method"]), []).append(_time(row))
    cells = [(quantity.show(target), method, *times) for (target, method), times in lines.items()]
    columns = dict.fromkeys(f"communication {row['communication_time']:g} s" for row in rows)
    title = (
        f"Simulated seconds to a mean test {quantity.name}: {BETWEEN} "
        "(ratio of the latter to that of the same method without stage doubling)"
    )
    return markdown(title, (f"{quantity.name}{quantity.unit}", "method", *columns), cells)


def convergence_rows(curves: Sequence[Curve], communication_times: Sequence[float]) -> Rows:
    """Simulated seconds until the training loss has all but stopped to fall, see ``converged_round``.

    Args:
        curves: Curves that log the training loss of every round.
        communication_times: Simulated seconds that the communication of a round takes.

    Returns:
        For each curve and communication time: ``round`` and ``seconds``, the means over the seeds, nan unless all
        converge; and ``reached``, how many do.
    """
    rows = []
    for curve in curves:
        reached = int(np.isfinite(curve.rounds_to_convergence).sum())
        same = {"method": curve.label, "round": float(curve.rounds_to_convergence.mean())}
        for communication_time in communication_times:
            seconds = float(curve.seconds_to_convergence(communication_time).mean())
            row = {**same, "communication_time": communication_time, "seconds": seconds}
            rows.append({**row, "reached": reached, "seeds": len(curve.runs)})
    return rows


def convergence_markdown(rows: Rows) -> str:
    """The table of ``convergence_rows``: a row for each curve, a column for each communication time."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        line = lines.setdefault(row["method"], [_reached(row, f"{row['round']:.4g}")])
        line.append(_reached(row, _seconds(row["seconds"])))
    columns = dict.fromkeys(f"communication {row['communication_time']:g} s" for row in rows)
    title = "Round, and simulated seconds, at which the training loss has converged, mean over seeds"
    return markdown(title, ("method", "round", *columns), [(method, *cells) for method, cells in lines.items()])


def cost_rows(curves: Sequence[Curve], targets: Sequence[float], cost: Cost) -> Rows:
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
    rows = []
    for target in targets:
        for curve in curves:
            before, spent = curve.reach(target, cost.of(curve))
            row = {"target": target, "method": curve.label, f"after_{cost.name}": float(before.mean())}
            row |= {cost.name: float(spent.mean()), "reached": int(np.isfinite(spent).sum()), "seeds": len(spent)}
            rows.append(row)
    return rows


def cost_markdown(rows: Rows, quantity: Quantity, cost: Cost) -> str:
    """The table of ``cost_rows``."""
    size, unit = cost.unit(max((row[cost.name] for row in rows if not isnan(row[cost.name])), default=0.0))
    cells = [
        (
            quantity.show(row["target"]),
            row["method"],
            _reached(row, _interval(row[f"after_{cost.name}"] / size, row[cost.name] / size, "{:.4g}".format)),
        )
        for row in rows
    ]
    title = f"{cost.words.capitalize()} to a mean test {quantity.name}: {BETWEEN}"
    return markdown(title, (f"{quantity.name}{quantity.unit}", "method", unit), cells)


def _reached(row: Mapping[str, Any], text: str) -> str:
    """What to say of a cost: nothing, unless all seeds reach the target."""
    if row["reached"] == row["seeds"]:
        return text
    return f"- ({row['reached']}/{row['seeds']} seeds)" if row["reached"] else "-"


def _time(row: Mapping[str, Any]) -> str:
    between = _interval(row["after_seconds"], row["seconds"], _seconds)
    return _reached(row, between + ("" if isnan(row["ratio"]) else f" ({row['ratio']:.2f})"))


def _interval(after: float, by: float, show: Callable[[float], str]) -> str:
    """The ends of an interval; a single number where they look the same."""
    return show(by) if show(after) == show(by) else f"{show(after)} to {show(by)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"
