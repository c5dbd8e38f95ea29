import sys
from collections.abc import Iterator
from datetime import timedelta
from threading import Event, Thread
from time import monotonic
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Column, Table

from pfl_lightning.methods import Method, method_of

SHOWN_AFTER = 1.0  # seconds of work
REFRESHES = 2  # per second
LINE_INTERVAL = 300.0  # seconds between two lines where there is no terminal
SMALLEST_BAR = 10  # columns
VALUES = {"train/loss": "loss {:.4g}", "time/total": "simulated {:.4g} s", "system/cohort": "{:g} clients"}


class RoundProgressBar(ProgressBar):
    """Shows the rounds done, with an estimate of the time left, and below it how far a long round or evaluation is.

    On a terminal it is drawn on stderr by rich's thread, which reads the method's ``progress`` twice a second: training
    never waits for it. In a notebook it is below the cell. Elsewhere, as in the log of a job, one line every five
    minutes says where the run is.
    """

    _status: "Status"

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._display: Live | Lines | None = None

    def disable(self) -> None:
        """Show nothing."""
        self._enabled = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start at the current round: the run may be resumed."""
        self._start(method_of(pl_module), trainer.max_steps)

    def on_train_batch_start(self, *_: Any) -> None:
        """Estimate the time left from here on: the first evaluation says nothing about rounds."""
        self._status.training_start = self._status.training_start or monotonic()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Show the values of the round."""
        self._status.update(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start, if the evaluation is not part of a training run."""
        if trainer.state.fn != TrainerFn.FITTING:
            self._start(method_of(pl_module))

    on_test_start = on_validation_start

    def teardown(self, *_: Any, **__: Any) -> None:
        """Leave the bars as they are: the summary comes next, or an error, which has a line of its own."""
        if self._display:
            self._display.stop()
        self._display = None

    on_train_end = on_exception = teardown

    def _start(self, method: Method, rounds: int = 0) -> None:
        self.teardown()
        self._status = Status(method, rounds)
        if self._enabled:
            console = Console(stderr=True)
            if console.is_jupyter:
                self._display = CellBar(self._status)
            else:
                self._display = bars(self._status, console) if console.is_terminal else Lines(self._status)
            self._display.start()


class Status:
    """Where a run is: rich draws a line for the rounds, and one for long work, and ``str`` has both in one line.

    Args:
        method: The method that runs.
        rounds: The last round; 0 if there is only an evaluation.

    Attributes:
        start: When this run or evaluation began, in seconds of ``time.monotonic``.
        training_start: When the first round of this run began; 0 before.
    """

    def __init__(self, method: Method, rounds: int = 0) -> None:
        self.method = method
        self.rounds = rounds
        self.first_round = method.accounting.clock.rounds
        self.start = monotonic()
        self.training_start = 0.0
        self.values: list[str] = []  # of the last round
        self._last_update = 0.0

    def update(self, trainer: pl.Trainer) -> None:
        """Show the values of a round, unless the last ones are not drawn yet: an accelerator waits for them."""
        if monotonic() - self._last_update >= 1 / REFRESHES or trainer.global_step == self.rounds:
            metrics = trainer.progress_bar_metrics
            self.values = [text.format(metrics[name]) for name, text in VALUES.items() if name in metrics]
            self._last_update = monotonic()

    @property
    def done(self) -> float:
        """Rounds done; a part of a round counts."""
        progress = self.method.progress
        return self.method.accounting.clock.rounds + (progress.share if progress.doing == "training" else 0.0)

    @property
    def words(self) -> list[str]:
        """The time left, or before it is known and at the end the time so far, and the values of the last round."""
        if not self.rounds:
            return []
        done = self.done
        if not self.first_round < done < self.rounds:
            return [clock(monotonic() - self.start), *self.values]
        remaining = (monotonic() - self.training_start) * (self.rounds - done) / (done - self.first_round)
        return [f"{clock(remaining)} left", *self.values]

    @property
    def work(self) -> list[str]:
        """How far the current work is; empty while it is brief."""
        progress = self.method.progress
        if not progress.doing or monotonic() - progress.since < SHOWN_AFTER:
            return []
        clients = f"{progress.reached:,} of {progress.clients:,} clients"
        remaining = progress.seconds_left
        return [clients] if remaining is None else [f"{clock(remaining)} left", clients]

    def __str__(self) -> str:
        """The rounds and the current work in one line, for a log."""
        rounds = f"round {self.method.accounting.clock.rounds} of {self.rounds}, {self.words[0]}" if self.words else ""
        work = f"{self.method.progress.doing}: {', '.join(self.work)}" if self.work else ""
        return "; ".join(filter(None, [rounds, work]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The lines as they are now."""
        progress = self.method.progress
        grid = Table.grid(Column(no_wrap=True), Column(ratio=1), Column(no_wrap=True), padding=(0, 1), expand=True)
        rounds = (f"Round {self.method.accounting.clock.rounds}/{self.rounds}", self.rounds, self.done, self.words)
        work = (progress.doing.capitalize(), 1.0, progress.share, self.work)
        for title, total, done, words in (rounds, work):
            if title and words:
                text = words_within(options.max_width - len(title) - SMALLEST_BAR - 2, words)
                grid.add_row(title, Bar(total, done), text)
        yield grid


def bars(status: Status, console: Console) -> Live:
    """Draws where a run is on a terminal."""
    prints = sys.stdout.isatty()  # what is printed meanwhile appears above; a redirected stdout stays what it is
    return Live(status, console=console, refresh_per_second=REFRESHES, redirect_stdout=prints)


class Lines(Thread):
    """Prints where a run is, one line every five minutes.

    Args:
        status: Where the run is.
    """

    def __init__(self, status: Status) -> None:
        super().__init__(daemon=True)
        self.status = status
        self.ended = Event()

    def run(self) -> None:
        """Write a line to stderr, and wait, until ``stop``."""
        while not self.ended.wait(LINE_INTERVAL):
            if line := str(self.status):  # empty when some work has just begun
                sys.stderr.write(f"pfl: {line}\n")

    def stop(self) -> None:
        """End the thread."""
        self.ended.set()
        self.join()


class CellBar(Lines):
    """Shows where a run is below the cell of a notebook that started it.

    Args:
        status: Where the run is.
    """

    def start(self) -> None:
        """Show the bar, and start the thread that updates it."""
        from IPython.display import display

        self.handle = display(self.content, raw=True, display_id=True)
        super().start()

    @property
    def content(self) -> dict[str, str]:
        """The bar and the line next to it, as a notebook's page and as text."""
        line = str(self.status)
        bar = (
            f'<progress max="{self.status.rounds}" value="{self.status.done}"></progress> '
            if self.status.rounds
            else ""
        )
        return {"text/html": f"{bar}{line}", "text/plain": line}

    def run(self) -> None:
        """Update the bar until ``stop``."""
        while not self.ended.wait(1 / REFRESHES):
            self.handle.update(self.content, raw=True)

    def stop(self) -> None:
        """End the thread, and show how far the run came."""
        super().stop()
        self.handle.update(self.content, raw=True)


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    return Console().is_jupyter


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
