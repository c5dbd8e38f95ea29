"""How long the runs of a figure will take, said before they start."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pfl_lightning.cli.planning import plan
from pfl_lightning.report.compare_runs import LOSS
from reproduction.runs import CONFIGS, Experiment, Sweep, found_runs, is_finished, newest, start

ROUNDS = 3  # of the run that is measured
Work = Sequence[tuple[Experiment, Sequence[Sweep]]]  # of each panel


class Costs(NamedTuple):
    """Seconds of a run: to start and stop, of a round, and of an evaluation."""

    start: float
    a_round: float
    evaluation: float


def announce(figure: str, scale: str, work: Work, jobs: int) -> None:
    """Print how many runs are to be made, and about how long they take.

    A short run of FedRep stands for all runs of a panel: methods with doubling take less, others about as long.

    Args:
        figure: Name of the figure.
        scale: Its scale.
        work: What its panels need.
        jobs: Number of runs at the same time.

    Raises:
        SystemExit: If a short run fails.
    """
    total = sum(len(sweep.names) * len(experiment.seeds) for experiment, sweeps in work for sweep in sweeps)
    to_do = [unfinished(*panel) for panel in work]
    if not any(to_do):
        return Console().print(f"{figure} at {scale} scale: {total} runs, all finished")
    seconds = sum(number * run_seconds(*panel) for number, panel in zip(to_do, work, strict=True) if number)
    finished = f" ({total - sum(to_do)} more are finished)" if sum(to_do) < total else ""
    return Console().print(
        f"{figure} at {scale} scale: {sum(to_do)} runs{finished}, about {duration(seconds / jobs)} with {jobs} "
        f"job{'s' * (jobs > 1)} (measured on {ROUNDS} rounds of FedRep for each panel)",
        soft_wrap=True,
    )


def unfinished(experiment: Experiment, sweeps: Sequence[Sweep]) -> int:
    """Number of runs that are not there, or have not done their rounds."""
    runs = [run for sweep in sweeps for name in sweep.names for run in found_runs(experiment, name)]
    return sum(run is None or not is_finished(run) for run in runs)


def run_seconds(experiment: Experiment, sweeps: Sequence[Sweep]) -> float:
    """Seconds of a run of FedRep, from a short one."""
    method = "fedrep"
    sweep = next(sweep for sweep in sweeps if method in sweep.methods)._replace(methods=[method])
    file, options = f"{CONFIGS}/methods/{method}.yaml", [*experiment.options, *sweep.options]
    (planned,) = plan([file], [], experiment.seeds[:1], options, experiment.folder)
    trainer = planned.settings["trainer"]
    return seconds_of(measured(experiment, sweep), trainer["max_steps"], trainer["val_check_interval"])


def seconds_of(costs: Costs, rounds: int, interval: int) -> float:
    """Seconds of a run that is evaluated at the start and every so many rounds."""
    return costs.start + rounds * costs.a_round + (1 + rounds // interval) * costs.evaluation


def measured(experiment: Experiment, sweep: Sweep) -> Costs:
    """Train a method for a few rounds, and take the time.

    Raises:
        SystemExit: If that fails.
    """
    short = shlex.split(f"--trainer.max_steps={ROUNDS} --trainer.val_check_interval={ROUNDS}")
    with TemporaryDirectory() as folder:
        began = perf_counter()
        once = Experiment(Path(folder), experiment.options, experiment.seeds[:1])
        if code := start(once, sweep._replace(options=[*sweep.options, *short])):
            raise SystemExit(code)
        total = perf_counter() - began
        return costs_of(newest(Path(folder) / sweep.names[0] / f"seed_{experiment.seeds[0]}"), total)


def costs_of(folder: Path, total: float) -> Costs:
    """The costs of a short run, of which TensorBoard's file tells when its values were logged.

    Args:
        folder: The run's folder.
        total: Seconds that it took.
    """
    events = EventAccumulator(str(folder)).Reload()
    rounds = [event.wall_time for event in events.Scalars(LOSS)]
    tests = [tag for tag in events.Tags()["scalars"] if tag.startswith("test/")]
    evaluation = max(events.Scalars(tag)[-1].wall_time for tag in tests) - rounds[-1]
    a_round = (rounds[-1] - rounds[0]) / (len(rounds) - 1)  # the first one prepares what all use
    return Costs(max(0.0, total - len(rounds) * a_round - 2 * evaluation), a_round, evaluation)


def duration(seconds: float) -> str:
    """Hours, or minutes if it is less than two hours."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes / 60:.0f} hours" if minutes >= 120 else f"{minutes} minute{'s' * (minutes > 1)}"
