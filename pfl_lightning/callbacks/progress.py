import sys
from datetime import timedelta
from threading import Event, Thread
from time import monotonic
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from pfl_lightning.methods import Method, method_of

BRIEF = 1.0  # seconds of work before it is shown
DRAWN = 2  # times a second
SAID_EVERY = 300.0  # seconds between two lines where there is no terminal
NARROWEST = 10  # columns of a bar
VALUES = {"train/loss": "loss {:.4g}", "time/total": "simulated {:.4g} s", "system/cohort": "{:g} clients"}


class RoundProgressBar(ProgressBar):
    """Shows the rounds done, with an estimate of the time left, and below it how far a long round or evaluation is.

    On a terminal it is drawn on stderr by rich's thread, which reads the method's ``progress`` twice a second: training
    never waits for it. Elsewhere, as in the log of a job, one line every five minutes says where the run is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._status: Status | None = None
        self._shown: Bars | Lines | None = None

    def disable(self) -> None:
        """Show nothing."""
        self._enabled = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin at the current round: the run may be resumed."""
        self._start(method_of(pl_module), trainer.max_steps)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Estimate the time left from here: the first evaluation says nothing about rounds."""
        if self._status:
            self._status.trained = self._status.trained or monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Take over the values of the round."""
        if self._status:
            self._status.take(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin, if the evaluation is not one of a training run."""
        if trainer.state.fn != TrainerFn.FITTING:
            self._start(method_of(pl_module))

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin."""
        self._start(method_of(pl_module))

    def teardown(self, *_: Any, **__: Any) -> None:
        """Leave the bars as they are: the summary comes next, or an error, which has a line of its own."""
        if self._shown:
            self._shown.stop()
        self._status = self._shown = None

    on_train_end = on_exception = teardown

    def _start(self, method: Method, rounds: int = 0) -> None:
        self.teardown()
        if self._enabled:
            self._status, console = Status(method, rounds), Console(stderr=True)
            self._shown = Bars(self._status, console) if console.is_terminal else Lines(self._status)
            self._shown.start()


class Status:
    """Where a run is.

    Args:
        method: The method that runs.
        rounds: The last round; 0 if there is only an evaluation.

    Attributes:
        trained: When the first round of this run began, in seconds of ``time.monotonic``; 0 before.
    """

    def __init__(self, method: Method, rounds: int = 0) -> None:
        self.method, self.rounds, self.first = method, rounds, method.accounting.clock.rounds
        self.begun, self.trained = monotonic(), 0.0
        self.values: list[str] = []  # of the last round
        self._taken = 0.0

    def take(self, trainer: pl.Trainer) -> None:
        """Take over the values of a round, unless there was no time to see the last ones: an accelerator waits."""
        if monotonic() - self._taken >= 1 / DRAWN or trainer.global_step == self.rounds:
            found = trainer.progress_bar_metrics
            self.values = [form.format(found[name]) for name, form in VALUES.items() if name in found]
            self._taken = monotonic()

    @property
    def done(self) -> float:
        """Rounds done; a part of a round counts."""
        progress = self.method.progress
        return self.method.accounting.clock.rounds + (progress.share if progress.doing == "training" else 0.0)

    @property
    def words(self) -> list[str]:
        """The time left, or before it is known and at the end the time so far, and the values of the last round."""
        done = self.done
        if not self.rounds:
            return []
        if not self.first < done < self.rounds:
            return [clock(monotonic() - self.begun), *self.values]
        left = (monotonic() - self.trained) * (self.rounds - done) / (done - self.first)
        return [f"{clock(left)} left", *self.values]

    @property
    def work(self) -> list[str]:
        """How far the current work is; empty while it is brief."""
        progress = self.method.progress
        if not progress.doing or monotonic() - progress.since < BRIEF:
            return []
        left, clients = progress.seconds_left, f"{progress.reached:,} of {progress.clients:,} clients"
        return [clients] if left is None else [f"{clock(left)} left", clients]

    def __str__(self) -> str:
        """All of it in one line, for a log."""
        rounds = f"round {self.method.accounting.clock.rounds} of {self.rounds}, {self.words[0]}" if self.words else ""
        work = f"{self.method.progress.doing}: {', '.join(self.work)}" if self.work else ""
        return "; ".join(filter(None, [rounds, work]))


class Bars(Progress):
    """A line for the rounds, and one for long work, on a terminal.

    Args:
        status: Where the run is.
        console: The terminal.
    """

    def __init__(self, status: Status, console: Console) -> None:
        self.status = status
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.fields[words]}"),
        )
        prints = sys.stdout.isatty()  # what is printed meanwhile appears above; a redirected stdout stays what it is
        super().__init__(*columns, console=console, refresh_per_second=DRAWN, redirect_stdout=prints, expand=True)
        for total in (status.rounds, 1.0):
            self.add_task("", words="", total=total)

    def get_renderable(self) -> RenderableType:
        """The lines as they are now."""
        status, progress = self.status, self.status.method.progress
        rounds = (f"Round {status.method.accounting.clock.rounds}/{status.rounds}", status.done, status.words)
        work = (progress.doing.capitalize(), progress.share, status.work)
        for line, (title, done, words) in zip(self.task_ids, (rounds, work), strict=False):  # at first without lines
            fitting = words_within(self.console.width - len(title) - NARROWEST - 2, words)
            self.update(line, description=title, completed=done, words=fitting, visible=bool(words and title))
        return super().get_renderable()


class Lines(Thread):
    """Says where a run is, in one line now and then.

    Args:
        status: Where the run is.
    """

    def __init__(self, status: Status) -> None:
        super().__init__(daemon=True)
        self.status, self.ended = status, Event()

    def run(self) -> None:
        """Write a line to stderr, and wait, until ``stop``."""
        while not self.ended.wait(SAID_EVERY):
            if line := str(self.status):  # empty when some work has just begun
                sys.stderr.write(f"pfl: {line}\n")

    def stop(self) -> None:
        """End the thread."""
        self.ended.set()
        self.join()


def words_within(width: int, words: list[str]) -> str:
    """As many words as fit.

    Example:
        >>> words_within(28, ["00:07 left", "loss 0.5", "20 clients"])
        '00:07 left, loss 0.5'
    """
    while len(line := ", ".join(words)) > width and words:
        words = words[:-1]
    return line


def clock(seconds: float) -> str:
    """Seconds as a clock shows them.

    Example:
        >>> clock(75.3), clock(3675), clock(90_000)
        ('01:15', '1:01:15', '1 day, 1:00:00')
    """
    return str(timedelta(seconds=int(seconds))).removeprefix("0:")
