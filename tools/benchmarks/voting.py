"""A round at whose end the server votes, beside the same round with a weighted mean."""

from collections.abc import Sequence

import torch

from benchmarks.device import CPU
from benchmarks.timing import Contest
from benchmarks.training import Ours
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client import BackendName
from pfl_lightning.server import Bulyan, CenteredClipping, GeometricMedian, Krum, Median, NearestNeighbours, TrimmedMean

VOTES = {
    "median": Median,
    "trimmed mean": TrimmedMean,
    "Krum": Krum,
    "RFA": GeometricMedian,
    "centered clipping": CenteredClipping,
    "nearest neighbours": NearestNeighbours,
    "Bulyan": Bulyan,
}


def contest(workload: Workload, backends: Sequence[BackendName], device: torch.device = CPU) -> Contest:
    """The mean, as ``plain``, and each vote; their clients train with the backend ``auto``."""
    data = RandomClients(workload, device)
    options = {"plain": {}, **{name: {"aggregator": vote()} for name, vote in VOTES.items()}}
    rounds = {name: Ours(workload.with_options(**changed), data, "auto") for name, changed in options.items()}
    actions = {name: contestant.turn for name, contestant in rounds.items()}
    return Contest(actions, int(workload.counts().sum()), device=device)
