"""What clients get that are new to a finished run."""

import json

import numpy as np

import pfl_lightning
from pfl_lightning.report import Curve, RunRecord
from reproduction.claims import Floats

CLIENTS = {"small": 16, "two_cores": 64, "full": 64}
FILE = "new_clients.json"
MODEL = "finetuned"  # a new head on the body


def new_accuracy(curve: Curve, clients: int, samples: int | None = None) -> Floats:
    """Mean test accuracy in % of clients that are new to some runs, ``[seeds]``.

    Args:
        curve: The runs.
        clients: Number of new clients.
        samples: Most training samples of each; None for all.
    """
    return np.array([100 * run_accuracy(run, clients, samples) for run in curve.runs])


def run_accuracy(run: RunRecord, clients: int, samples: int | None = None) -> float:
    """The mean accuracy of clients that are new to a run, as ``new_accuracy``; kept in its folder."""
    key = f"{clients} clients, {samples or 'all'} samples"
    path = run.folder / FILE
    known = json.loads(path.read_text()) if path.is_file() else {}
    if key not in known:
        rows = pfl_lightning.Run(run.folder).test(new_clients=clients, new_samples=samples)
        known[key] = rows.accuracy[(rows.split == "test") & (rows.model == MODEL)].mean()
        path.write_text(json.dumps(known) + "\n")
    return float(known[key])
