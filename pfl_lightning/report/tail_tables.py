"""Table of the clients' final errors: whom a model fails, and what it costs to serve them."""

from collections.abc import Sequence

from pfl_lightning.quantity import LOSS, Quantity
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.tables import OVER_SEEDS, Rows, markdown, over_seeds, with_spread
from pfl_lightning.report.tails import TEST, TRAIN, differences, evaluate_training, reference_of

COMPARED = ("mean", "p90", "superquantile 10 %")


def error_rows(curves: Sequence[Curve]) -> Rows:
    """The clients' test errors (or losses) at the last evaluation, and their training losses if these were evaluated.

    Args:
        curves: Curves on the same data.

    Returns:
        For each curve the statistics of ``tails.TEST``; ``<name> difference``, the same minus that of the
        ``reference``, over the seeds that both have; and ``train loss mean`` and ``train loss p90``, weighted by
        samples. Each is a mean over the seeds, with its sample standard deviation as ``<name>_seed_std``, nan for one
        seed.
    """
    reference, trained = reference_of(curves), evaluate_training(curves)
    rows = []
    for curve in curves:
        row = {"method": curve.label, "seeds": len(curve.runs), "round": int(curve.rounds[-1])}
        for name, statistic in TEST.items():
            row |= over_seeds(name, map(statistic, curve.final_errors))
        row["reference"] = reference.label
        for name in COMPARED:
            row |= over_seeds(f"{name} difference", differences(curve, reference, TEST[name]))
        for name, weighted in TRAIN.items() if trained else ():
            row |= over_seeds(f"train loss {name}", map(weighted, curve.final("train")))
        rows.append(row)
    return rows


def error_markdown(rows: Rows, quantity: Quantity) -> str:
    """The tables of ``error_rows``: errors, differences to the reference, training losses."""
    name = f"Clients' test {quantity.error_name}{quantity.unit}"
    cells = [(row["method"], *(with_spread(row, column, quantity) for column in TEST)) for row in rows]
    texts = [markdown(f"{name} at the last evaluation, {OVER_SEEDS}", ("method", *TEST), cells)]
    others = [row for row in rows if row["method"] != row["reference"]]
    if others:
        cells = [
            (row["method"], *(with_spread(row, f"{column} difference", quantity, sign="+") for column in COMPARED))
            for row in others
        ]
        title = f"{name} minus that of {rows[0]['reference']} with the same seed, {OVER_SEEDS}"
        texts.append(markdown(title, ("method", *COMPARED), cells))
    if f"train loss {next(iter(TRAIN))}" in rows[0]:
        cells = [(row["method"], *(with_spread(row, f"train loss {name}", LOSS) for name in TRAIN)) for row in rows]
        title = f"Clients' training loss, weighted by their samples, {OVER_SEEDS}"
        texts.append(markdown(title, ("method", *TRAIN), cells))
    return "\n".join(texts)
