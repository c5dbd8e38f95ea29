"""SRPFL's theory of linear representations, checked on simulations; see docs/evidence/derivations.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
from bare_trainer import bare_trainer
from matplotlib.axes import Axes
from theory.times import equal_stages_ratio, expected_time, stage_lengths, stage_sizes

from pfl_lightning.callbacks import OracleDoubling, StageDoubling
from pfl_lightning.data import LinearRepresentation
from pfl_lightning.methods import LinearFedRep
from pfl_lightning.metrics import principal_angle_distance
from pfl_lightning.models import LinearNetwork
from pfl_lightning.report import save_figure
from pfl_lightning.report.drawing import grid
from pfl_lightning.system import DynamicExponential, Participation
from reproduction.claims import Floats, deviation
from reproduction.items import Part
from reproduction.results import Numbers

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
STOP = 1.25  # multiple of the pool's floor at which a race ends
SCHEDULED = 64  # clients in the pool of the races between lengths of stages
EQUAL = (1, 2, 4, 8, 16)  # rounds in each stage
PARTICIPANTS = (8, 16, 32, 64)  # of 64 clients
POOLS = (16, 32, 64, 128, 256)
NOISES = (0.1, 1.0)


class Recorder(pl.Callback):
    """Remembers a run.

    Args:
        data: What the run is trained on.
        until: The distance at which the run ends.

    Attributes:
        distances: Distance to the true representation, before the first round and after each.
        cohort_sizes: Participants of each round.
    """

    def __init__(self, data: LinearRepresentation, until: float = 0.0) -> None:
        self.data = data
        self.until = until
        self.distances: list[float] = []
        self.cohort_sizes: list[int] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember the start."""
        assert isinstance(pl_module, LinearFedRep)
        found = pl_module.representation
        truth = found.new_tensor(self.data.representation)
        self.distances.append(float(principal_angle_distance(found, truth)))

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Remember a round, which can be the last."""
        self.distances.append(float(trainer.callback_metrics["train/distance"]))
        self.cohort_sizes.append(int(trainer.callback_metrics["system/cohort"]))
        if self.distances[-1] <= self.until:
            trainer.should_stop = True


def train(
    data: LinearRepresentation,
    rounds: int,
    *callbacks: pl.Callback,
    lr: float = RATE,
    until: float = 0.0,
    **options: Any,
) -> Recorder:
    """Train linear FedRep for some rounds, or until a distance."""
    recorder = Recorder(data, until)
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


def contractions(
    noise: float, participants: Sequence[int] = PARTICIPANTS, lr: float = RATE, rounds: int = ROUNDS
) -> Distances:
    """Runs from the method of moments for each number of participants, who are drawn anew in each round."""
    return {n: np.array([moments_run(n, noise, seed, lr, rounds) for seed in SEEDS]) for n in participants}


def safe_contractions(noise: float) -> Distances:
    """Longer runs for the fewest and the most participants, at the safe rate."""
    return contractions(noise, (PARTICIPANTS[0], PARTICIPANTS[-1]), SAFE_RATE, SAFE_ROUNDS)


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
    return train(racing(pool, seed), MOST_ROUNDS, OracleDoubling(n0, FLOOR, leave=1.3, stop=STOP), init="random")


def racing(pool: int, seed: int) -> LinearRepresentation:
    """The problem of a race: clients are equally fast on average, and others are fast in each round."""
    return problem(pool, 0.3, seed, speeds=DynamicExponential(low=1.0, high=1.0, seed=seed))


def schedules(factor: float) -> Numbers:
    """Seconds of SRPFL with the theory's lengths of stages and with equal ones, and those of a round of each stage.

    Args:
        factor: By what a round shrinks the distance. A random start is at a distance of nearly 1.
    """
    return {
        "theory's stages": scheduled_seconds(stage_lengths(1 / FLOOR, factor, N0, SCHEDULED)),
        **{f"stages of {length}": scheduled_seconds([length]) for length in EQUAL},
        "rounding": expected_time(stage_sizes(N0, SCHEDULED), SCHEDULED),
    }


def scheduled_seconds(lengths: list[int]) -> Floats:
    """Seconds until the end of a race, each round charged with its expectation, ``[seeds]``; nan for never."""
    runs = [scheduled(lengths, seed) for seed in range(RACES)]
    seconds = [expected_time(run.cohort_sizes, SCHEDULED) for run in runs]
    return np.where([run.distances[-1] <= run.until for run in runs], seconds, np.nan)


def scheduled(lengths: list[int], seed: int) -> Recorder:
    """One run of SRPFL with stages of so many rounds."""
    doubling = StageDoubling(N0, lengths)
    end = STOP * FLOOR / SCHEDULED**0.5
    return train(racing(SCHEDULED, seed), MOST_ROUNDS, doubling, until=end, init="random")


def time_ratios(pairs: Sequence[Race], pool: int, communication_time: float = 0.0) -> Floats:
    """Seconds of SRPFL over those of FedRep, each round charged with its expectation, ``[seeds]``."""
    seconds = [[expected_time(run.cohort_sizes, pool, communication_time) for run in pair] for pair in pairs]
    return np.array([srpfl / fedrep for fedrep, srpfl in seconds])


def numbers(part: Part) -> Numbers:
    """Run and draw the experiments of the linear case, which takes about a quarter of an hour; seeds are its own."""
    distances = contractions(0.0)
    floors = {noise: floor_of(contractions(noise)) for noise in NOISES}
    safe = safe_contractions(0.0)
    safe_floors = floor_of(safe_contractions(NOISES[0]), SAFE_LAST)
    factors = {n: factors_of(each) for n, each in distances.items()}
    runs = races()
    ratios = {pool: time_ratios(pairs, pool) for pool, pairs in runs.items()}
    draw(distances, floors, ratios, part.place.folder / "linear.png")
    cohorts = [len(run.cohort_sizes) for pairs in runs.values() for pair in pairs for run in pair]
    low, high = NOISES
    return {
        **{f"contraction {n}": each for n, each in factors.items()},
        "log10 of the largest distance": float(np.log10(max(each[:, -1].max() for each in distances.values()))),
        **{f"floor {noise} {n}": each for noise, by_size in floors.items() for n, each in by_size.items()},
        **{f"slope {noise}": log_slopes(by_size) for noise, by_size in floors.items()},
        **{f"proportion {n}": floors[high][n] / floors[low][n] * low / high for n in PARTICIPANTS},
        **{f"safe contraction {n}": factors_of(each) for n, each in safe.items()},
        "theorem": np.array([theorem_factor(seed, safe[64][row, 0]) for row, seed in enumerate(SEEDS)]),
        **{f"safe floor {n}": each for n, each in safe_floors.items()},
        "safe slope": log_slopes(safe_floors),
        **{f"ratio {pool}": each for pool, each in ratios.items()},
        **{f"costly ratio {pool}": time_ratios(pairs, pool, 100.0) for pool, pairs in runs.items()},
        "most rounds": float(max(cohorts)),
        **schedules(float(np.mean([*factors.values()]))),
    }


def factors_of(distances: Floats) -> Floats:
    """By what a round shrinks the distance, until it is that of rounding, ``[seeds]``."""
    ends = [next((t for t, distance in enumerate(run) if distance < 1e-12), len(run) - 1) for run in distances]
    return np.array([(run[end] / run[0]) ** (1 / end) for run, end in zip(distances, ends, strict=True)])


def theorem_factor(seed: int, distance: float) -> float:
    """By what a round of all clients at the safe rate shrinks the distance, before its floor is added.

    Formula: sqrt(1 - a), with a = lr (1 - dist(B_0, B*)^2) sigma_min^2 / 2, which is at most 1/4, and sigma_min the
    smallest singular value of the heads / sqrt(clients); SRPFL, eq. (11).
    """
    heads = problem(64, 0.0, seed).heads
    diversity = np.linalg.svd(heads / np.sqrt(len(heads)), compute_uv=False).min()
    return float(np.sqrt(1 - SAFE_RATE * (1 - distance**2) * diversity**2 / 2))


def log_slopes(floors: Mapping[int, Floats]) -> Floats:
    """The power of the participants with which the floors of each seed grow, ``[seeds]``."""
    slopes: Floats = np.polyfit(np.log(list(floors)), np.log(list(floors.values())), 1)[0]
    return slopes


def draw(
    distances: Distances, floors: Mapping[float, Mapping[int, Floats]], ratios: Mapping[int, Floats], path: Path
) -> None:
    """Draw contraction, noise floors and time ratios side by side: means over the seeds, with what they spread."""
    with grid(13, 4, 1, 3) as (figure, (panels,)):
        shrinking, floor, ratio = panels
        for n, runs in distances.items():
            (line,) = shrinking.semilogy(runs.mean(0), label=f"n = {n}")
            shrinking.fill_between(range(runs.shape[1]), runs.min(0), runs.max(0), color=line.get_color(), alpha=0.15)
        shrinking.set(title="contraction without noise; bands: all seeds", xlabel="communication rounds")
        shrinking.set_ylabel("principal-angle distance")
        for noise, by_size in floors.items():
            color = bars(floor, by_size, "o", f"noise {noise}")
            line = 0.44 * noise / np.sqrt(list(by_size))
            floor.plot(list(by_size), line, ":", color=color, label=f"{0.44 * noise:.2g} / √n")
        per_doubling(floor, PARTICIPANTS)
        floor.set(title="noise floor; bars: std over seeds", xlabel="participants n", yscale="log")
        floor.set_ylabel(f"mean distance, rounds {ROUNDS - LAST + 1} to {ROUNDS}")
        exact = [N0, *ratios]
        bars(ratio, ratios, "o-", "to the same distance, simulated")
        ratio.plot(exact, [equal_stages_ratio(N0, pool) for pool in exact], "s--", label="equal stages, closed form")
        per_doubling(ratio, exact)
        ratio.set(title="time of SRPFL / time of FedRep; bars: std over seeds", xlabel="clients N", ylim=(0, None))
        ratio.set_ylabel("ratio of expected seconds")
        for axes in panels:
            axes.legend()
    save_figure(figure, path, dpi=120)


def bars(axes: Axes, values: Mapping[int, Floats], style: str, label: str) -> Any:
    """Draw means over the seeds with their sample standard deviations; returns the colour."""
    means = [found.mean() for found in values.values()]
    spreads = [deviation(found) for found in values.values()]
    return axes.errorbar(list(values), means, spreads, fmt=style, label=label)[0].get_color()


def per_doubling(axes: Axes, values: Sequence[int]) -> None:
    """A logarithmic axis with these values on it."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
