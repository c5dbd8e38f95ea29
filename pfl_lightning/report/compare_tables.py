"""Tables of curves: the clients' final scores and errors, how soon scores were reached, and what that has cost."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import isfinite, isnan, nan

import numpy as np

from pfl_lightning.report.compare_curves import Curve, Curves, without_doubling
from pfl_lightning.report.measures import (
    COMMUNICATION,
    ROUNDS,
    TEST,
    TRAIN,
    TRAINING,
    Cost,
    Statistic,
    evaluate_training,
    reference_of,
    simulated_time,
    statistics_of,
    worst_tenth,
)
from pfl_lightning.report.tables import (
    OVER_SEEDS,
    Row,
    Rows,
    Table,
    cost_cell,
    markdown,
    over_seeds,
    seeds_latex,
    seeds_markdown,
)
from pfl_lightning.score_kind import APART, LOSS

BETWEEN = "from the evaluation before to the first that has it, mean over seeds"
COMMUNICATION_COLUMN = "communication {:g} s"
SHARES = (0.9, 0.95, 0.99)  # of the best final score, for targets
SPREAD = "std over clients"
COMPARED = ("mean", "p90", "superquantile 10 %")  # with the reference


def tables_of(curves: Curves, communication_times: Sequence[float], targets: Sequence[float] = ()) -> Iterator[Table]:
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
    yield from (cost_table(curves, targets, cost) for cost in (ROUNDS, COMMUNICATION, TRAINING) if cost.known(curves))


# The clients at the last evaluation


def final_table(curves: Curves) -> Table:
    """How the scores are spread over the clients at the last evaluation, never at the best one.

    Args:
        curves: Curves on the same data.

    Returns:
        For each curve ``mean``, ``std over clients`` (of the population), ``worst 10 %`` (the mean of these clients),
        ``worst``, ``p10``, ``p50`` and ``p90`` (interpolated), each as the mean over the seeds, and as
        ``<name>_seed_std`` its sample standard deviation over the seeds, nan for one seed. Where clients attack, also
        the mean of the ``attackers``, and of what a ``backdoor`` makes of other clients' samples.
    """
    score_kind = curves[0].score_kind
    apart = [split for split in APART if any(curve.evaluates(split) for curve in curves)]
    statistics: dict[str, Statistic] = {
        "mean": TEST["mean"],
        SPREAD: np.std,
        "worst 10 %": worst_tenth(score_kind),
        "worst": np.min if score_kind.higher_is_better else np.max,
        **{name: TEST[name] for name in ("p10", "p50", "p90")},
    }
    rows = []
    for curve in curves:
        row = _about(curve) | over_seeds(statistics_of(curve, statistics, "score"))
        for split in apart:
            mean = statistics_of(curve, {split: np.mean}, "score", split=split) if curve.evaluates(split) else None
            row |= {split: nan, f"{split}_seed_std": nan} if mean is None else over_seeds(mean)
        rows.append(row)
    statistics |= dict.fromkeys(apart, np.mean)
    title = f"Clients' test {score_kind.label} at the last evaluation, {OVER_SEEDS}"
    text = seeds_markdown(title, rows, statistics, score_kind, first=("method", "seeds", "round"))
    seeds, rounds = (" or ".join(map(str, sorted({row[name] for row in rows}))) for name in ("seeds", "round"))
    caption = f"{title}: seeds {seeds}, round {rounds}"
    directions = {name: score_kind.higher_is_better and name not in (SPREAD, "backdoor") for name in statistics}
    return Table("final", rows, text, seeds_latex("final", caption, rows, directions, score_kind))


def error_table(curves: Curves) -> Table:
    """The clients' test errors (or losses) at the last evaluation, and their training losses if these were evaluated.

    Args:
        curves: Curves on the same data.

    Returns:
        For each curve the statistics of ``measures.TEST``; ``<name> difference``, the same minus that of the
        ``reference``, over the seeds that both have; and ``train loss mean`` and ``train loss p90``, weighted by
        samples. Each is a mean over the seeds, with its sample standard deviation as ``<name>_seed_std``, nan for one
        seed.
    """
    score_kind = curves[0].score_kind
    reference = reference_of(curves)
    has_training = evaluate_training(curves)
    baseline = statistics_of(reference, TEST, "error")
    rows = []
    for curve in curves:
        errors = statistics_of(curve, TEST, "error")
        common = errors.index.intersection(baseline.index)
        differences = (errors - baseline).loc[common, list(COMPARED)].add_suffix(" difference")
        row = _about(curve) | over_seeds(errors) | {"reference": reference.label} | over_seeds(differences)
        if has_training:
            losses = statistics_of(curve, TRAIN, "loss", "samples", split="train")
            row |= over_seeds(losses.add_prefix("train loss "))
        rows.append(row)
    name = f"Clients' test {score_kind.error_label}"
    texts = [seeds_markdown(f"{name} at the last evaluation, {OVER_SEEDS}", rows, TEST, score_kind)]
    if compared := [row for row in rows if row["method"] != reference.label]:
        title = f"{name} minus that of {reference.label} with the same seed, {OVER_SEEDS}"
        texts.append(seeds_markdown(title, compared, COMPARED, score_kind, key="{} difference", sign="+"))
    if has_training:
        title = f"Clients' training loss, weighted by their samples, {OVER_SEEDS}"
        texts.append(seeds_markdown(title, rows, TRAIN, LOSS, key="train loss {}"))
    return Table("errors", rows, "\n".join(texts))


# What was spent until a score was reached


def usual_targets(curves: Curves) -> list[float]:
    """90, 95 and 99 % of the best final mean score among the methods without stage doubling, or among all."""
    plain = [curve for curve in curves if not curve.doubled] or curves
    finals = [float(curve.means[:, -1].mean()) for curve in plain]
    finals = [final for final in finals if isfinite(final)] or finals
    if curves[0].score_kind.higher_is_better:
        return [share * max(finals) for share in SHARES]
    return [min(finals) / share for share in SHARES]


def time_table(curves: Curves, targets: Sequence[float], communication_times: Sequence[float]) -> Table:
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
    score_kind = curves[0].score_kind
    rows: Rows = []
    cells = []
    for target, curve in product(targets, curves):
        line = [score_kind.show(target), curve.label]
        plain = without_doubling(curve, curves)
        for time in communication_times:
            row: Row = {"target": target, "method": curve.label, "communication_time": time}
            row |= _spent(curve, target, simulated_time(time))
            reference = _spent(plain, target, simulated_time(time))["seconds"] if plain else nan
            row["ratio"] = row["seconds"] / reference if reference > 0 else nan
            ratio = "" if isnan(row["ratio"]) else f" ({row['ratio']:.2f})"
            line.append(_if_reached(row, _interval(row, "seconds", _seconds) + ratio))
            rows.append(row)
        cells.append(line)
    title = f"Simulated seconds to a mean test {score_kind.name}: {BETWEEN}"
    if any(curve.doubled for curve in curves):
        title += " (ratio of the latter to that of the same method without stage doubling)"
    columns = (score_kind.label, "method", *map(COMMUNICATION_COLUMN.format, communication_times))
    return Table("time_to_accuracy", rows, markdown(title, columns, cells))


def cost_table(curves: Curves, targets: Sequence[float], cost: Cost) -> Table:
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
    rows: Rows = [
        {"target": target, "method": curve.label} | _spent(curve, target, cost)
        for target, curve in product(targets, curves)
    ]
    size, unit = cost.unit(max((row[cost.name] for row in rows if not isnan(row[cost.name])), default=0.0))
    score_kind = curves[0].score_kind
    cells = [
        [
            score_kind.show(row["target"]),
            row["method"],
            _if_reached(row, _interval(row, cost.name, lambda spent: f"{spent / size:.4g}")),
        ]
        for row in rows
    ]
    title = f"{cost.words.capitalize()} to a mean test {score_kind.name}: {BETWEEN}"
    return Table(f"{cost.name}_to_accuracy", rows, markdown(title, (score_kind.label, "method", unit), cells))


def convergence_table(curves: Curves, communication_times: Sequence[float]) -> Table:
    """Simulated seconds until the training loss has all but stopped falling, see ``converged_round``.

    Args:
        curves: Curves that log the training loss of every round.
        communication_times: Simulated seconds that the communication of a round takes.

    Returns:
        For each curve and communication time: ``round`` and ``seconds``, the means over the seeds, nan unless all
        converge; and ``reached``, how many do. The text has a row for each curve, and a column for each communication
        time.
    """
    rows: Rows = []
    cells = []
    for curve in curves:
        last, _ = curve.convergence(0)
        row: Row = {"method": curve.label, "round": float(last.mean())}
        reached = {"reached": int(np.isfinite(last).sum()), "seeds": len(last)}
        line = [curve.label, _if_reached(reached, f"{last.mean():.4g}")]
        for time in communication_times:
            _, spent = curve.convergence(time)
            seconds = float(spent.mean())
            rows.append({**row, "communication_time": time, "seconds": seconds, **reached})
            line.append(_if_reached(reached, _seconds(seconds)))
        cells.append(line)
    title = "Round, and simulated seconds, at which the training loss has converged, mean over seeds"
    columns = ("method", "round", *map(COMMUNICATION_COLUMN.format, communication_times))
    return Table("convergence", rows, markdown(title, columns, cells))


def _about(curve: Curve) -> Row:
    return {"method": curve.label, "seeds": len(curve.runs), "round": int(curve.rounds[-1])}


def _spent(curve: Curve, target: float, cost: Cost) -> Row:
    """Cells for what a target has cost."""
    before, spent = curve.reach(target, cost.of(curve))
    row: Row = {f"after_{cost.name}": float(before.mean()), cost.name: float(spent.mean())}
    return row | {"reached": int(curve.reached(target).any(1).sum()), "seeds": len(spent)}


def _if_reached(row: Row, text: str) -> str:
    """What to say of a cost: nothing, unless all seeds reach the target."""
    if row["reached"] == row["seeds"]:
        return text
    return f"- ({row['reached']}/{row['seeds']} seeds)" if row["reached"] else "-"


def _interval(row: Row, name: str, show: Callable[[float], str]) -> str:
    """From the cost before to that at which a target was reached; a single number where they look the same."""
    start = show(row[f"after_{name}"])
    end = show(row[name])
    return end if start == end else f"{start} to {end}"


def _seconds(seconds: float) -> str:
    return cost_cell(seconds, unknown="unknown")
