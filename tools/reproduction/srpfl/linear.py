"""Simulations of SRPFL's linear case; see docs/evidence/derivations.md."""

from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
from bare_trainer import bare_trainer
from theory.times import expected_time

from pfl_lightning.callbacks import OracleDoubling
from pfl_lightning.data import LinearRepresentation
from pfl_lightning.methods import LinearFedRep
from pfl_lightning.metrics import principal_angle_distance
from pfl_lightning.models import LinearNetwork
from pfl_lightning.system import DynamicExponential, Participation
from reproduction.claims import Floats

ROUNDS, LAST = 80, 30  # rounds, and those whose distances make the floor
RATE = 0.5  # far above what the theorem allows
# the theorem allows 1 / (8 s^2), s the largest singular value of the participants' heads / sqrt(participants): the
# heads have the norm sqrt(2), so s^2 is at most 2, whoever takes part
SAFE_RATE = 1 / 16
SAFE_ROUNDS, SAFE_LAST = 300, 100
SEEDS = tuple(range(1, 11))  # of contractions and floors
RACES = 40  # for each size of the pool
MOST_ROUNDS = 300  # of a run that an oracle stops; they take about 20
N0 = 8
FLOOR = 0.133  # the distance at which one participant would end up with noise 0.3, from the floors: 0.44 * 0.3
PARTICIPANTS = (8, 16, 32, 64)  # of 64 clients
POOLS = (16, 32, 64, 128, 256)


class Recorder(pl.Callback):
    """Remembers a run.

    Args:
        data: What the run is trained on.

    Attributes:
        distances: Distance to the true representation, before the first round and after each.
        cohort_sizes: Participants of each round.
    """

    def __init__(self, data: LinearRepresentation) -> None:
        self.data = data
        self.distances: list[float] = []
        self.cohort_sizes: list[int] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember the start."""
        assert isinstance(pl_module, LinearFedRep)
        found = pl_module.representation
        truth = found.new_tensor(self.data.representation)
        self.distances.append(float(principal_angle_distance(found, truth)))

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Remember a round."""
        self.distances.append(float(trainer.callback_metrics["train/distance"]))
        self.cohort_sizes.append(int(trainer.callback_metrics["system/cohort"]))


def train(
    data: LinearRepresentation, rounds: int, *callbacks: pl.Callback, lr: float = RATE, **options: Any
) -> Recorder:
    """Train linear FedRep."""
    recorder = Recorder(data)
    trainer = bare_trainer(rounds, *callbacks, recorder, accelerator="cpu", precision="64-true")
    trainer.fit(LinearFedRep(network=LinearNetwork, lr=lr, weighting="uniform", **options), data)
    return recorder


def problem(clients: int, noise: float, seed: int, **options: Any) -> LinearRepresentation:
    """20 inputs, rank 2, and 40 new samples at every participant of a round."""
    return LinearRepresentation(
        num_clients=clients,
        noise=noise,
        samples=50,
        test_fraction=0.2,
        val_fraction=0.0,
        fresh=True,
        seed=seed,
        generator_seed=seed,
        **options,
    )


Race = tuple[Recorder, Recorder]  # FedRep and SRPFL
Distances = Mapping[int, Floats]  # by participants; before the first round and after each, [seeds, 1 + rounds]


def contractions(noise: float) -> Distances:
    """Runs from the method of moments for each number of participants, who are drawn anew in each round."""
    return {n: np.array([moments_run(n, noise, seed, RATE, ROUNDS) for seed in SEEDS]) for n in PARTICIPANTS}


def safe_contractions(noise: float) -> Distances:
    """Longer runs for the fewest and the most participants, at the safe rate."""
    ends = PARTICIPANTS[0], PARTICIPANTS[-1]
    return {n: np.array([moments_run(n, noise, seed, SAFE_RATE, SAFE_ROUNDS) for seed in SEEDS]) for n in ends}


def moments_run(n: int, noise: float, seed: int, lr: float, rounds: int) -> list[float]:
    """The distances of one run with n participants of 64 clients."""
    return train(problem(64, noise, seed, participation=Participation(pool_size=n)), rounds, lr=lr).distances


def floor_of(runs: Distances, last: int = LAST) -> dict[int, Floats]:
    """Mean distance over so many last rounds, by number of participants, ``[seeds]``."""
    return {n: distances[:, -last:].mean(1) for n, distances in runs.items()}


def races() -> dict[int, list[Race]]:
    """Runs of FedRep and SRPFL to the same distance, by the size of the pool; one pair for each seed."""
    return {pool: [(race(pool, pool, seed), race(pool, N0, seed)) for seed in range(RACES)] for pool in POOLS}


def race(pool: int, n0: int, seed: int) -> Recorder:
    """One run, of FedRep where the first stage is the pool."""
    data = problem(pool, 0.3, seed, speeds=DynamicExponential(low=1.0, high=1.0, seed=seed))
    return train(data, MOST_ROUNDS, OracleDoubling(n0, FLOOR, leave=1.3, stop=1.25), init="random")


def time_ratios(pairs: Sequence[Race], pool: int, communication_time: float = 0.0) -> Floats:
    """Seconds of SRPFL over those of FedRep, each round charged with its expectation, ``[seeds]``."""
    seconds = [[expected_time(run.cohort_sizes, pool, communication_time) for run in pair] for pair in pairs]
    return np.array([srpfl / fedrep for fedrep, srpfl in seconds])
