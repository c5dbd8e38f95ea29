"""Curves of made-up runs, for claims."""

from pathlib import Path

import numpy as np
import pandas as pd
from reproduction.claims import HOLDS

from pfl_lightning.report import Curve, RunRecord
from pfl_lightning.report.run_files import Label
from pfl_lightning.score_kind import ACCURACY

SECONDS = np.arange(5.0)
CLIENTS = 4


def curve(*seeds, seconds=SECONDS, clients=(0.0,) * CLIENTS, cohort=CLIENTS, name="FedRep"):
    """A curve of runs that are evaluated after the rounds 0, 10, 20, 30 and 40; two of them if one seed is given.

    Args:
        seeds: Mean accuracy at each evaluation, of each seed.
        seconds: Simulated seconds of computation until then.
        clients: What each client's final accuracy is above the mean.
        cohort: Clients that train in a round.
        name: Its label.
    """
    seeds = seeds * 2 if len(seeds) == 1 else seeds
    return Curve([run(seed, means, seconds, clients, cohort, name) for seed, means in enumerate(seeds)], "m")


def run(seed, means, seconds, clients, cohort, name):
    rounds = np.arange(41)
    evaluated = rounds[::10]
    logged = pd.DataFrame({"time/compute": np.interp(rounds, evaluated, seconds)})
    logged["system/cohort"] = pd.Series(cohort, rounds[1:])
    logged["test/m/accuracy/mean"] = pd.Series(means, evaluated)
    scores = means[-1] + np.array(clients)
    results = {("test", "m", 40): pd.DataFrame({"score": scores, "error": 1 - scores})}
    label = Label("FedRep", name, None if name == "FedRep" else "SRPFL", {}, is_baseline=False)
    return RunRecord(Path(), label, seed, {}, ACCURACY, ["m"], evaluated, logged, results)


SLOW = curve([0.1, 0.3, 0.5, 0.55, 0.6], seconds=10 * SECONDS)
FAST = curve([0.1, 0.3, 0.5, 0.58, 0.6])
NEVER = curve([0.1, 0.2, 0.3, 0.3, 0.3])


def panel(fast=FAST, slow=SLOW, **others):
    """The four methods of a panel, and others."""
    return {"FedRep": slow, "FedRep-SRPFL": fast, "LG-FedAvg": slow, "LG-SRPFL": fast, **others}


def passed(claims):
    """Which claims hold."""
    return [claim.verdict == HOLDS for claim in claims]


def failed(claims):
    """What the claims that do not hold are about."""
    return [claim.claim.split(":")[0] for claim in claims if claim.verdict != HOLDS]
