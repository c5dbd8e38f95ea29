"""SRPFL's theory of linear representations, checked on simulations, and drawn; see docs/derivations.md."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lightning.callbacks import OracleDoubling
from pfl_lightning.data import LinearRepresentation
from pfl_lightning.methods import LinearFedRep
from pfl_lightning.models import LinearNetwork
from pfl_lightning.system import DynamicExponential, Participation
from pfl_lightning.theory import equal_stages_ratio, expected_time, principal_angle_distance
from reproduction.claims import Claim

ROUNDS = 80
MOST_ROUNDS = 300  # of a run that an oracle stops; they take about 20
N0 = 8
FLOOR = 0.133  # the distance at which one participant would end up with noise 0.3, from the floors: 0.44 * 0.3
# what is expected, by participants n of 64 clients, by noise, and by the size N of the pool
FLOORS = {0.1: (0.0156, 0.0111, 0.0077, 0.0056), 1.0: (0.161, 0.109, 0.078, 0.056)}
PARTICIPANTS = (8, 16, 32, 64)
RATIOS = {16: 0.28, 32: 0.16, 64: 0.14, 128: 0.12, 256: 0.12}
EXACT_RATIOS = {8: 1.0, 16: 0.5980, 32: 0.4122, 64: 0.3081, 128: 0.2432, 256: 0.1995, 512: 0.1685, 1024: 0.1455}


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


def train(data: LinearRepresentation, rounds: int, *callbacks: pl.Callback, **options: Any) -> Recorder:
    """Train linear FedRep with the step size 0.5."""
    recorder = Recorder(data)
    trainer = pl.Trainer(
        accelerator="cpu",
        precision="64-true",
        max_steps=rounds,
        max_epochs=-1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, recorder],
    )
    trainer.fit(LinearFedRep(network=LinearNetwork, lr=0.5, weighting="uniform", **options), data)
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


# Experiments

Race = tuple[Recorder, Recorder]  # FedRep and SRPFL


def contractions(noise: float) -> dict[int, list[float]]:
    """Distances of a run for each number of participants, drawn anew in each round, from the method of moments."""
    pools = {n: Participation(pool_size=n) for n in PARTICIPANTS}
    return {n: train(problem(64, noise, 1, participation=pools[n]), ROUNDS).distances for n in PARTICIPANTS}


def noise_floors() -> dict[float, dict[int, float]]:
    """Mean distance over the last 30 rounds, by noise and number of participants."""
    return {noise: {n: float(np.mean(d[-30:])) for n, d in contractions(noise).items()} for noise in FLOORS}


def races(seeds: int) -> dict[int, list[Race]]:
    """Runs of FedRep and SRPFL to the same distance, by the size of the pool; one pair for each seed."""
    return {pool: [(race(pool, pool, seed), race(pool, N0, seed)) for seed in range(seeds)] for pool in RATIOS}


def race(pool: int, n0: int, seed: int) -> Recorder:
    """One run, of FedRep where the first stage is the pool."""
    data = problem(pool, 0.3, seed, speeds=DynamicExponential(low=1.0, high=1.0, seed=seed))
    return train(data, MOST_ROUNDS, OracleDoubling(n0, FLOOR, leave=1.3, stop=1.25), init="random")


def time_ratio(pairs: Sequence[Race], pool: int, communication_time: float = 0.0) -> float:
    """Seconds of SRPFL over those of FedRep, summed over the seeds, each round charged with its expectation."""
    fedrep, srpfl = (
        sum(expected_time(run.cohort_sizes, pool, communication_time) for run in runs)
        for runs in zip(*pairs, strict=True)
    )
    return srpfl / fedrep


# Claims


def contraction_claims(runs: Mapping[int, Sequence[float]]) -> list[Claim]:
    """Without noise, the distance shrinks geometrically, equally fast for all n (5.7.1)."""
    ends = {n: next((t for t, distance in enumerate(run) if distance < 1e-12), ROUNDS) for n, run in runs.items()}
    factors = [(run[ends[n]] / run[0]) ** (1 / ends[n]) for n, run in runs.items()]
    last = max(run[-1] for run in runs.values())
    return [
        Claim("contraction per round, n = 8 to 64", several(factors), "0.58 to 0.60, < 0.75", max(factors) < 0.75),
        Claim(f"largest distance after {ROUNDS} rounds", f"{last:.0e}", "< 1e-8", last < 1e-8),
    ]


def floor_claims(floors: Mapping[float, Mapping[int, float]]) -> list[Claim]:
    """With noise, the distance stays at a floor proportional to noise / sqrt(n) (5.7.2)."""
    claims = []
    for noise, by_size in floors.items():
        sizes, values = list(by_size), list(by_size.values())
        slope = float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
        claims.append(
            Claim(
                f"floor with noise {noise}, n = 8 to 64; log-log slope",
                f"{several(values, 4)}; {slope:.2f}",
                f"{several(FLOORS[noise], 4)}; -0.5 +- 0.1",
                abs(slope + 0.5) <= 0.1,
            )
        )
    low, high = FLOORS
    ratios = np.array([floors[high][n] / floors[low][n] for n in PARTICIPANTS]) * low / high
    is_proportional = bool((abs(ratios - 1) <= 0.15).all())
    return [*claims, Claim("floor / noise, 1 against 0.1", several(ratios), "1 +- 0.15", is_proportional)]


def speedup_claims(runs: Mapping[int, Sequence[Race]]) -> list[Claim]:
    """SRPFL reaches FedRep's distance sooner, the more so the larger the pool (5.7.3), if talking is cheap (5.7.5)."""
    ratios = {pool: time_ratio(pairs, pool) for pool, pairs in runs.items()}
    is_fast = all(ratio < 0.5 for pool, ratio in ratios.items() if pool >= 32) and ratios[256] < ratios[16]
    longest = max(len(run.cohort_sizes) for pairs in runs.values() for pair in pairs for run in pair)
    costly = np.array([time_ratio(pairs, pool, 100.0) for pool, pairs in runs.items()])
    rounds = np.array([time_ratio(pairs, pool, 1e9) for pool, pairs in runs.items()])
    return [
        Claim(
            "seconds of SRPFL / FedRep, N = 16 to 256",
            several(ratios.values()),
            f"{several(RATIOS.values())}; < 0.5 from 32 on, 256 below 16",
            is_fast,
        ),
        Claim("most rounds of a run", f"{longest}", f"< {MOST_ROUNDS}", longest < MOST_ROUNDS),
        Claim(
            "the same with C = 100: that of rounds",
            several(costly),
            f"{several(rounds)}; +- 10 %",
            bool((abs(costly / rounds - 1) <= 0.1).all()),
        ),
    ]


def exact_claims() -> list[Claim]:
    """The ratio of expected times for equal stages, in closed form (5.7.4 and 5.7.5)."""
    ratios = [equal_stages_ratio(N0, pool) for pool in EXACT_RATIOS]
    costly = [equal_stages_ratio(N0, pool, 100.0) for pool in EXACT_RATIOS]
    expected = several(EXACT_RATIOS.values(), 4)
    return [
        Claim("equal stages, N = 8 to 1024", several(ratios, 4), expected, several(ratios, 4) == expected),
        Claim("equal stages with C = 100", several(costly), "about 1, > 0.9", min(costly) > 0.9),
    ]


def several(values: Iterable[float], digits: int = 2) -> str:
    """Numbers, with so many digits behind the point."""
    return ", ".join(f"{value:.{digits}f}" for value in values)


# The whole


def linear_claims(seeds: int = 10, figure: Path | None = None) -> list[Claim]:
    """Run the experiments of the linear case, which takes about 15 seconds.

    Args:
        seeds: Repetitions of 5.7.3.
        figure: Where the picture goes, if anywhere; its ending says the format.
    """
    distances, floors, runs = contractions(noise=0.0), noise_floors(), races(seeds)
    if figure is not None:
        draw(distances, floors, {pool: time_ratio(pairs, pool) for pool, pairs in runs.items()}, figure)
    return [*contraction_claims(distances), *floor_claims(floors), *speedup_claims(runs), *exact_claims()]


def draw(
    distances: Mapping[int, Sequence[float]],
    floors: Mapping[float, Mapping[int, float]],
    ratios: Mapping[int, float],
    path: Path,
) -> None:
    """Draw contraction, noise floors and time ratios side by side."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    contraction, floor, ratio = figure.subplots(1, 3)
    for n, values in distances.items():
        contraction.semilogy(values, label=f"n = {n}")
    describe(contraction, "contraction without noise", "communication rounds", "principal-angle distance")
    for noise, by_size in floors.items():
        sizes = np.array(list(by_size))
        (points,) = floor.plot(sizes, list(by_size.values()), "o", label=f"noise {noise}")
        line = 0.44 * noise / np.sqrt(sizes)
        floor.plot(sizes, line, ":", color=points.get_color(), label=f"{0.44 * noise:.2g} / √n")
    floor.set_yscale("log")
    per_doubling(floor, PARTICIPANTS)
    describe(floor, "noise floor", "participants n", "mean distance, rounds 51 to 80")
    exact = [pool for pool in EXACT_RATIOS if pool <= max(ratios)]
    ratio.plot(list(ratios), list(ratios.values()), "o-", label="to the same distance, simulated")
    ratio.plot(exact, [equal_stages_ratio(N0, pool) for pool in exact], "s--", label="equal stages, exact")
    per_doubling(ratio, exact)
    ratio.set_ylim(bottom=0)
    describe(ratio, "time of SRPFL / time of FedRep", "clients N", "ratio of expected seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def per_doubling(axes: Axes, values: Sequence[int]) -> None:
    """A logarithmic axis with these values on it."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])


def describe(axes: Axes, title: str, x: str, y: str) -> None:
    """Title, names of the axes, grid and legend."""
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    axes.legend()
