"""What clients get that are new to a finished run."""

import json

import numpy as np

import pfl_lightning
from pfl_lightning.report import Curve, RunRecord
from reproduction.claims import Floats

CLIENTS = {"small": 16, "full": 64}
FILE = "new_clients.json"
MODEL = "finetuned"  # a new head on the body


def new_accuracy(curve: Curve, clients: int) -> Floats:
    """Mean test accuracy in % of clients that are new to some runs, ``[seeds]``.

    Args:
        curve: The runs.
        clients: Number of new clients.
    """
    return np.array([100 * run_accuracy(run, clients) for run in curve.runs])


def run_accuracy(run: RunRecord, clients: int) -> float:
    """The mean accuracy of clients that are new to a run; kept in its folder.

    Args:
        run: The run.
        clients: Number of new clients.
    """
    path = run.folder / FILE
    known = json.loads(path.read_text()) if path.is_file() else {}
    if str(clients) not in known:
        rows = pfl_lightning.Run(run.folder).test(new_clients=clients)
        known[str(clients)] = rows.accuracy[(rows.split == "test") & (rows.model == MODEL)].mean()
        path.write_text(json.dumps(known) + "\n")
    return float(known[str(clients)])
