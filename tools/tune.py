"""Which backend and chunk size are fastest for a run.

``python tools/tune.py --config FILE`` takes the options of ``pfl fit``, besides ``--repeats`` and ``--threads``.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple, get_args

import lightning.pytorch as pl
import torch
from bare_trainer import bare_trainer
from benchmarks.device import finish, forget_peak, peak_mebibytes
from benchmarks.report import markdown
from benchmarks.timing import in_turns

from pfl_lightning.bounds import PositiveInt
from pfl_lightning.cli.running import run
from pfl_lightning.client import BackendName
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method
from pfl_lightning.runs.run_settings import make_parts, parse_words, run_parser

CHUNK_SIZES = (1, 2, 5, 10, 20, 50, 100)
CLOSE = 1.05  # seconds up to so many times the best ones are as good
AS_BY_USER = ("accelerator", "precision", "deterministic", "benchmark")  # trainer options that decide how long it takes
COLUMNS = ("backend", "chunk size", "seconds", "spread", "peak MiB")


class Choice(NamedTuple):
    """What can be set.

    Attributes:
        backend: ``model.backend``.
        chunk_size: ``model.chunk_size``.
    """

    backend: BackendName = "auto"
    chunk_size: int | None = None

    def flags(self, current: "Choice") -> str:
        """The options that turn the current choice into this one."""
        values = {name: value for name, value in self._asdict().items() if value != getattr(current, name)}
        return " ".join(f"--model.{name} {'null' if value is None else value}" for name, value in values.items())


@dataclass
class Trial:
    """What a choice takes.

    Attributes:
        seconds: Of each round.
        peak: The most memory that was held during a round, in mebibytes; None where that cannot be told.
        reason: Why it is not possible, if so.
    """

    seconds: list[float] = field(default_factory=list)
    peak: float | None = None
    reason: str | None = None


def tune_command(words: list[str]) -> None:
    """Read the settings of a run, and measure its rounds instead of running it.

    Args:
        words: Options of ``pfl fit``, and those of the tool.
    """
    parser = run_parser()
    parser.add_argument("--repeats", type=PositiveInt, default=5)
    parser.add_argument("--threads", type=PositiveInt | None, default=None)
    parsed = parse_words(parser, words)
    repeats = parsed.pop("repeats")
    torch.set_num_threads(parsed.pop("threads") or torch.get_num_threads())
    parts = make_parts(parser, parsed)
    current = Choice(parts.method.backend, parts.method.chunk_size)
    data: Any = parts.data
    data.setup("fit")
    pretrained = data.pretrained()  # once: reading them may take seconds
    data.pretrained = lambda: pretrained
    rounds = Rounds(partial(with_choice, parts.method), data, {name: parts.trainer[name] for name in AS_BY_USER})
    trials = tune(rounds.take, choices(rounds.cohort, current), repeats)
    print(table(trials))
    print(advice(trials, current))


def with_choice(method: Method, choice: Choice) -> Method:
    """A copy of a method that is not built yet, with another choice; the parser would take seconds for it."""
    method = deepcopy(method)
    method.backend, method.chunk_size = choice
    return method


class Rounds:
    """The first round, over and over, with one choice or another.

    Args:
        make: Makes a method for a choice; all of them start alike.
        data: The clients.
        options: Of the trainer.
    """

    def __init__(self, make: Callable[[Choice], Method], data: FederatedDataModule, options: Mapping[str, Any]) -> None:
        self.make, self.data, self.options = make, data, options

    @property
    def cohort(self) -> int:
        """Clients of the round."""
        return len(self.data.make_round(0).examples)

    def take(self, choice: Choice, fresh: bool = False) -> tuple[float, float | None]:
        """Take the round.

        Args:
            choice: Backend and chunk size.
            fresh: Give the memory that is free back first, so that the peak can be told on a CPU too.

        Returns:
            Seconds, and the peak of memory in mebibytes.

        Raises:
            PflError: If the backend cannot run this network, or the memory does not suffice.
        """
        method, timer = self.make(choice), RoundTimer(fresh)
        method.build_for(self.data)
        bare_trainer(1, timer, **self.options).fit(method, datamodule=self.data)
        if method.cohort.limit is not None:
            raise PflError(f"the memory of the device suffices for {method.cohort.limit} clients at once")
        return timer.seconds, timer.peak


class RoundTimer(pl.Callback):
    """Seconds and memory of a trainer's first round, from before its clients are chosen.

    Args:
        fresh: Whether the peak shall be told on a CPU.
    """

    def __init__(self, fresh: bool) -> None:
        self.fresh, self.seconds = fresh, float("nan")
        self.peak: float | None = None

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock, and forget the peak of memory so far."""
        self.fresh = self.fresh and forget_peak(pl_module.device)
        self.start = time.perf_counter()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Stop the clock when the device has finished."""
        finish(pl_module.device)
        self.seconds = time.perf_counter() - self.start
        if self.fresh:
            self.peak = peak_mebibytes(pl_module.device)


def choices(cohort: int, current: Choice) -> list[Choice]:
    """Every backend with every chunk size up to the cohort, and what is set now."""
    sizes = [None, *(size for size in CHUNK_SIZES if size <= cohort)]
    every = [Choice(backend, size) for backend, size in product(get_args(BackendName), sizes)]
    return every if current in every else [*every, current]


def tune(
    take: Callable[..., tuple[float, float | None]], candidates: Sequence[Choice], repeats: int
) -> dict[Choice, Trial]:
    """Take rounds of all choices in turns: one for the memory, one to warm up, and those that are measured."""
    firsts = in_turns({choice: partial(first, take, choice) for choice in candidates}, 1, "memory")
    trials = {choice: runs[0] for choice, runs in firsts.items()}
    rounds = {choice: partial(take, choice) for choice, trial in trials.items() if trial.reason is None}
    in_turns(rounds, 1, "warm-up")
    for choice, results in in_turns(rounds, repeats, "rounds").items():
        trials[choice].seconds = [seconds for seconds, _ in results]
    return trials


def first(take: Callable[..., tuple[float, float | None]], choice: Choice) -> Trial:
    """The peak of a choice's memory, or why it is impossible: for the network, or with so little memory."""
    try:
        return Trial(peak=take(choice, fresh=True)[1])
    except (PflError, RuntimeError) as error:
        return Trial(reason=str(error).splitlines()[0])


def table(trials: dict[Choice, Trial]) -> str:
    """The trials as a Markdown table, the fastest first; behind them what is not possible."""
    rows = []
    possible = {choice: trial for choice, trial in trials.items() if trial.reason is None}
    for choice, trial in sorted(possible.items(), key=lambda item: statistics.median(item[1].seconds)):
        spread = f"{min(trial.seconds):.4f} .. {max(trial.seconds):.4f}"
        peak = "" if trial.peak is None else f"{trial.peak:.0f}"
        size, seconds = str(choice.chunk_size or "default"), f"{statistics.median(trial.seconds):.4f}"
        rows.append([choice.backend, size, seconds, spread, peak])
    reasons = dict.fromkeys((choice.backend, trial.reason) for choice, trial in trials.items() if trial.reason)
    for backend, reason in reasons:
        alike = [choice for choice, t in trials.items() if (choice.backend, t.reason) == (backend, reason)]
        sizes = ", ".join(str(choice.chunk_size or "default") for choice in alike)
        rows.append([backend, sizes, f"not possible: {reason}", "", ""])
    return markdown(COLUMNS, rows)


def gain(trial: Trial, over: Trial) -> float:
    """How many times as fast one trial surely is as another: by its median round and by its fastest."""
    return min(of(over.seconds) / of(trial.seconds) for of in (statistics.median, min))


def advice(trials: dict[Choice, Trial], current: Choice) -> str:
    """The options to add, if any pay; of choices that are about as good, the one with the fewest options."""
    possible = {choice: trial for choice, trial in trials.items() if trial.reason is None}
    if not possible:
        return "No choice is possible."
    now = "the default" if current == Choice() else "what is set"
    base = possible.get(current) or min(possible.values(), key=lambda trial: statistics.median(trial.seconds))
    gains = {choice: gain(trial, base) for choice, trial in possible.items()}
    good = [choice for choice in gains if gains[choice] * CLOSE >= max(gains.values())]
    if current in good:
        return f"Nothing need be set: {now} is within 5 % of the best."
    best = min(good, key=lambda choice: (len(choice.flags(current).split()), -gains[choice]))
    faster = f"{gains[best]:.2f} times as fast as {now}" if current in possible else f"{now} is not possible"
    return f"Add: {best.flags(current)} ({faster})"


if __name__ == "__main__":
    run(tune_command, sys.argv[1:])
