"""Curves as small files, from which figures are drawn and claims decided without the runs."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pfl_lightning.report import Curve, RunRecord
from pfl_lightning.report.run_files import COMPUTE, ROUND, Label
from pfl_lightning.score_kind import ACCURACY, LOSS

SCORES = {kind.name: kind for kind in (ACCURACY, LOSS)}
MODEL = "kept"  # the labels in the files already say which one was evaluated


def keep(curves: Sequence[Curve], path: Path) -> None:
    """Write curves: a row for each seed and evaluation, with the simulated seconds that were not communication."""
    rows = [
        {"curve": curve.label, "family": curve.family, "doubled": curve.doubled, "quantity": curve.score_kind.name}
        | {"seed": run.seed, "round": at, "seconds": seconds, "score": score}
        for curve in curves
        for run, *values in zip(curve.runs, curve.times(0.0), curve.means, strict=True)
        for at, seconds, score in zip(curve.rounds, *values, strict=True)
    ]
    pd.DataFrame(rows).to_csv(path, index=False, float_format="%.5g")


def kept(path: Path) -> list[Curve]:
    """The curves in a file of ``keep``, in their order."""
    rows = pd.read_csv(path)
    groups = rows.groupby(["curve", "family", "doubled", "quantity"], sort=False)
    return [_curve(path.parent, own) for _, own in groups]


def _curve(folder: Path, rows: pd.DataFrame) -> Curve:
    first = rows.iloc[0]
    label = Label(first.family, first.curve, "doubling" if first.doubled else None, {MODEL: ""}, is_baseline=False)
    return Curve([_run(folder, label, own) for _, own in rows.groupby("seed")], MODEL)


def _run(folder: Path, label: Label, rows: pd.DataFrame) -> RunRecord:
    first = rows.iloc[0]
    tags = {"seconds": COMPUTE, "score": f"test/{MODEL}/{first.quantity}/mean"}
    logged = rows.rename(columns=tags).set_index(ROUND)
    rounds = logged.index.to_numpy()
    return RunRecord(folder, label, int(first.seed), {}, SCORES[first.quantity], [MODEL], rounds, logged, {})
