import sys
from threading import Event, Thread
from time import monotonic
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar

from pfl_lightning.data.progress import BRIEF, DRAWN, clock, row
from pfl_lightning.methods import Method, method_of

SAID_EVERY = 300.0  # seconds between two lines where there is no terminal
NARROWEST = 10  # columns of a bar


class RoundProgressBar(ProgressBar):
    """Shows the rounds done, with an estimate of the time left, and below it how far a long round or evaluation is.

    On a terminal it is drawn on stderr by a thread that reads the method's ``progress`` twice a second: training never
    waits for it. Elsewhere, as in the log of a job, one line every five minutes says where the run is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._view: View | None = None
        self._shown: Live | Lines | None = None

    def disable(self) -> None:
        """Show nothing."""
        self._enabled = False

    def enable(self) -> None:
        """Show progress."""
        self._enabled = True

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin at the current round: the run may be resumed."""
        self._start(View(method_of(pl_module), trainer.max_steps))

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Estimate the time left from here: the first evaluation says nothing about rounds."""
        if self._view:
            self._view.train()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Take over the values of the round."""
        if self._view:
            self._view.take(trainer)

    def on_train_end(self, *_: Any) -> None:
        """Leave the bar as it is."""
        self._stop()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin, if the evaluation is not one of a training run."""
        if trainer.state.fn != TrainerFn.FITTING:
            self._start(View(method_of(pl_module)))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End what ``on_validation_start`` began."""
        if trainer.state.fn != TrainerFn.FITTING:
            self._stop()

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin."""
        self._start(View(method_of(pl_module)))

    def on_test_end(self, *_: Any) -> None:
        """End."""
        self._stop()

    def on_exception(self, *_: Any) -> None:
        """Leave the bar as it is: the error has a line of its own."""
        self._stop()

    def _start(self, view: "View") -> None:
        self._stop()
        if not self._enabled:
            return
        console = Console(stderr=True)
        if console.is_terminal:
            # what is printed meanwhile appears above the bar; a redirected stdout stays what it is
            self._shown = Live(view, console=console, refresh_per_second=DRAWN, redirect_stdout=sys.stdout.isatty())
        else:
            self._shown = Lines(view)
        self._view = view
        self._shown.start()

    def _stop(self) -> None:
        if self._shown:
            self._shown.stop()
        self._view = self._shown = None


class View:
    """What there is to see of a run: for rich, lines of a terminal with bars; in words, one line.

    Args:
        method: The method that runs.
        rounds: The last round; 0 if there is only an evaluation.
    """

    def __init__(self, method: Method, rounds: int = 0) -> None:
        self.method, self.rounds, self.first = method, rounds, method.accounting.clock.rounds
        self.begun, self.trained = monotonic(), 0.0
        self.values: list[str] = []  # of the last round, the first ones the last to go from a narrow line
        self._taken = 0.0

    def train(self) -> None:
        """Note when the first round begins."""
        self.trained = self.trained or monotonic()

    def take(self, trainer: pl.Trainer) -> None:
        """Take over the values of a round, unless there was no time to see the last ones: an accelerator waits."""
        if monotonic() - self._taken < 1 / DRAWN and trainer.global_step < self.rounds:
            return
        forms = {"train/loss": "loss {:.4g}", "time/total": "simulated {:.4g} s", "system/cohort": "{:g} clients"}
        found = trainer.progress_bar_metrics
        self.values = [form.format(found[name]) for name, form in forms.items() if name in found]
        self._taken = monotonic()

    @property
    def done(self) -> float:
        """Rounds done; a part of a round counts."""
        progress = self.method.progress
        return self.method.accounting.clock.rounds + (progress.share if progress.doing == "training" else 0.0)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the last round is done; None before anything is done, and at the end."""
        done = self.done
        if not self.first < done < self.rounds:
            return None
        return (monotonic() - self.trained) * (self.rounds - done) / (done - self.first)

    @property
    def work(self) -> list[str]:
        """How far the current work is; empty while it is brief."""
        progress = self.method.progress
        if not progress.doing or monotonic() - progress.since < BRIEF:
            return []
        clients = f"{progress.reached:,} of {progress.clients:,} clients"
        return [*left(progress.seconds_left), clients, f"{progress.share:.1%}"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One line for the rounds, and one for long work."""
        width = options.max_width
        if self.rounds:
            elapsed = clock(monotonic() - self.begun)
            words = [*(left(self.seconds_left) or [elapsed]), *self.values]
            title = f"Round {self.method.accounting.clock.rounds}/{self.rounds}"
            yield row(title, Bar(self.rounds, self.done), fitting(words, width - len(title)))
        if work := self.work:
            title = self.method.progress.doing.capitalize()
            yield row(title, Bar(1.0, self.method.progress.share), fitting(work, width - len(title)))

    def __str__(self) -> str:
        """The same in words, for a log."""
        rounds = (
            [f"round {self.method.accounting.clock.rounds} of {self.rounds}", *left(self.seconds_left)]
            if self.rounds
            else []
        )
        work = f"{self.method.progress.doing}: {', '.join(self.work)}" if self.work else ""
        return "; ".join(filter(None, [", ".join(rounds), work]))


class Lines(Thread):
    """Says where a run is, in one line now and then.

    Args:
        view: The run.
    """

    def __init__(self, view: View) -> None:
        super().__init__(daemon=True)
        self.view, self.ended = view, Event()

    def run(self) -> None:
        """Write a line to stderr, and wait, until ``stop``."""
        while not self.ended.wait(SAID_EVERY):
            sys.stderr.write(f"pfl: {self.view}\n")

    def stop(self) -> None:
        """End the thread."""
        self.ended.set()
        self.join()


def fitting(words: list[str], width: int) -> str:
    """As many words as leave room for a bar.

    Example:
        >>> fitting(["00:07 left", "loss 0.5", "20 clients"], 40)
        '00:07 left, loss 0.5'
    """
    while len(line := ", ".join(words)) > width - NARROWEST - 2 and words:
        words = words[:-1]
    return line


def left(seconds: float | None) -> list[str]:
    """The time left in words, if it is known."""
    return [] if seconds is None else [f"{clock(seconds)} left"]
