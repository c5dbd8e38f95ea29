"""What clients get that are new to a finished run, by ``pfl test --data.new_clients``."""

import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np

from pfl_lightning.cli.fit import PflCLI
from pfl_lightning.report import Curve, Run
from pfl_lightning.report.client_table import Floats

CLIENTS = {"small": 16, "full": 64}
FILE = "new_clients.json"
MEAN = "test/finetuned/accuracy/mean"  # of those that trained a new head on the body


def new_accuracy(curve: Curve, clients: int) -> Floats:
    """Mean test accuracy in % of clients that are new to some runs, ``[seeds]``.

    Args:
        curve: The runs.
        clients: Number of new clients.
    """
    return np.array([100 * run_accuracy(run, clients) for run in curve.runs])


def run_accuracy(run: Run, clients: int) -> float:
    """The mean accuracy of clients that are new to a run; kept in its folder.

    Args:
        run: The run.
        clients: Number of new clients.
    """
    path = run.folder / FILE
    known = json.loads(path.read_text()) if path.is_file() else {}
    if str(clients) not in known:
        known[str(clients)] = _test(run, clients)
        path.write_text(json.dumps(known) + "\n")
    return float(known[str(clients)])


def _test(run: Run, clients: int) -> float:
    options = [f"--config={run.folder}/config.yaml", f"--ckpt_path={run.folder}/checkpoints/last.ckpt"]
    with redirect_stdout(StringIO()):  # a table for each run
        cli = PflCLI(["test", *options, f"--data.new_clients={clients}", "--trainer.enable_progress_bar=false"])
    return float(cli.trainer.callback_metrics[MEAN])
