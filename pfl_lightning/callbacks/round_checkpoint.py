import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from pfl_lightning import processes
from pfl_lightning.bounds import PositiveInt
from pfl_lightning.callbacks.monitors import check_monitor, higher_is_better, mean_score
from pfl_lightning.callbacks.run_folder import CHECKPOINTS, folder_of
from pfl_lightning.data import federated
from pfl_lightning.errors import MachineError, PflError
from pfl_lightning.federation.checkpoints import DamagedError, check_readable, read_checkpoint, refusing
from pfl_lightning.files import copy, is_intact, new_file, replace
from pfl_lightning.methods import method_of

LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
BEST = "best.ckpt"


class WholeFiles(TorchCheckpointIO):
    """Writes checkpoints straight into their folder, not to a temporary folder first, and reads only intact ones."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a file that is on disk when this returns; see ``new_file``.

        Raises:
            PflError: If it could not be read, such as for what a callback keeps.
        """
        check_readable(checkpoint)
        with new_file(Path(path)) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a file of plain values and tensors, onto the CPU; see ``read_checkpoint``."""
        return read_checkpoint(path)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # SLURM sends the last, if a job asks for it


class Stopped(SystemExit):
    """A signal ended the run after a complete, saved round; the exit code is 128 plus the signal's number."""


class RoundCheckpoint(Checkpoint):
    """Saves checkpoints: the last one (``last.ckpt``), the one before it (``previous.ckpt``) and ``best.ckpt``.

    A checkpoint appears under its name only when it is complete on disk, in the place of an older one; ``best.ckpt``
    appears before ``last.ckpt``. So after a kill at any moment, the resumed run ends with the same files as a run that
    was not interrupted. On SIGINT, SIGTERM or SIGUSR1, in whichever of its processes, the run finishes the current
    round, saves it and exits with code 130, 143 or 138; a second signal stops it at once.

    The best checkpoint is the first with the highest score of all evaluations that were made in the folder. If a run
    is extended, this includes the evaluation after what was its last round then, which a run that was longer from the
    beginning would have made only if its interval asked for it.

    A round is written to a temporary file, which then takes its name or names. The best one comes first: a kill between
    the two leaves a ``best.ckpt`` that is ahead of ``last.ckpt``, and the resumed run comes to the same round again.

    It replaces the trainer's ``CheckpointIO`` by one that writes into the run's folder alone.

    Args:
        monitor: Logged value that selects the best checkpoint; larger is better, except for losses, errors, spreads and
            metrics of which less is better. Default: the mean validation score of the method's first evaluated model;
            without validation samples there is no best checkpoint.
        every: Rounds between two saves of the last checkpoint; also saved are the last round, and the current one
            on a signal. Default: each evaluated round. A new best checkpoint is always saved when it is found.
    """

    def __init__(self, monitor: str | None = None, every: PositiveInt | None = None) -> None:
        self.monitor = monitor
        self.every = every
        self.monitored = monitor or ""  # the default has a name when the method is known
        self.best_score = -torch.inf
        self.best_round = 0
        self.advice = "add --ckpt_path last to the command to continue"
        self._received_signal = 0  # by this process; 0 for none
        self._signal = 0  # on which all processes have agreed
        self._is_pending = False  # a round is written, but Lightning has not logged its values yet
        self._handlers: dict[int, Any] = {}

    @property
    def interrupted(self) -> bool:
        """Whether a signal has asked this run to end, be it in its last round."""
        return bool(self._received_signal or self._signal)

    def state_dict(self) -> dict[str, Any]:
        """The best round and its score."""
        return {"best_score": self.best_score, "best_round": self.best_round}

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the name of the value that selects the best checkpoint."""
        checkpoint["monitor"] = self.monitored

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Set the folder, and how files are written and read."""
        self.folder = folder_of(trainer) / CHECKPOINTS
        self.temporary = self.folder / ".last.tmp"
        trainer.strategy.checkpoint_io = WholeFiles()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start without a best checkpoint; a resumed run starts with the best one of its folder."""
        method = method_of(pl_module)
        data = federated(trainer)
        check_monitor("checkpoint.monitor", self.monitor or "", method, data)
        self.monitored = self.monitor or mean_score(method.eval_models[0], method)
        self.best_score = -torch.inf
        self.best_round = 0
        if trainer.ckpt_path is not None:
            self._continue_best()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install signal handlers, after Lightning has installed its own."""
        self._received_signal = self._signal = 0
        self._is_pending = False
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Write a round that is due, unless its evaluation is still to come."""
        evaluation_follows = trainer.should_stop or trainer.global_step % (trainer.val_check_batch or 1) == 0
        if self._is_due(trainer, evaluated=False) and not evaluation_follows:
            self._write(trainer)
            self._is_pending = True

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Save the round that was written; only now has Lightning logged its values. Stop after a signal."""
        if self._is_pending:
            self._become_last(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the round that was evaluated, if it is due or the best."""
        if trainer.state.fn != TrainerFn.FITTING or _is_trial(trainer):
            return
        is_due = self._is_due(trainer, evaluated=True)
        is_best = self._improves(trainer)
        if is_due or is_best:
            self._write(trainer)
        if is_best and trainer.is_global_zero:
            self._become_best(also_last=is_due)
        if is_due:
            self._become_last(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the last round, unless its evaluation did; restore the previous signal handlers."""
        if self._is_pending:
            self._become_last(trainer)
        self._restore_handlers()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Remove a round that was written but not saved; restore the previous signal handlers."""
        if trainer.is_global_zero and hasattr(self, "temporary"):  # not if the setup of another callback has failed
            self.temporary.unlink(missing_ok=True)
        self._restore_handlers()

    # When to save

    def _is_due(self, trainer: pl.Trainer, evaluated: bool) -> bool:
        """Whether this round is to be the last checkpoint; all processes must call this together."""
        if _is_trial(trainer):
            return False
        self._signal = max(processes.all_gather(self._received_signal))
        if self._signal or trainer.should_stop or trainer.global_step == trainer.max_steps:
            return True
        return evaluated if self.every is None else trainer.global_step % self.every == 0

    def _improves(self, trainer: pl.Trainer) -> bool:
        """Whether this evaluation is the best so far; if so, it is remembered."""
        logged = trainer.callback_metrics
        if self.monitor is not None and self.monitor not in logged:
            choices = ", ".join(name for name in logged if name.startswith("val/"))
            raise PflError(f"checkpoint.monitor: {self.monitor} is not logged; allowed: {choices}")
        sign = 1 if higher_is_better(self.monitored, method_of(trainer.lightning_module)) else -1
        score = sign * float(logged.get(self.monitored, -sign * torch.inf))
        is_best = score > self.best_score  # never, if the score is nan
        if is_best:
            self.best_score = score
            self.best_round = trainer.global_step
        return is_best

    def _continue_best(self) -> None:
        """Continue from the best checkpoint of the folder, which may be ahead of the last one."""
        path = self.folder / BEST
        if not path.is_file():
            return
        try:
            best = read_checkpoint(path)
        except DamagedError as error:
            warnings.warn(f"{error}; it will be replaced by the best round from now on", stacklevel=2)
            return
        with refusing(best):
            if (previous := best["monitor"]) != self.monitored:
                change = f"{previous} in '{path}', {self.monitored} now"
                raise PflError(f"checkpoint.monitor: {change}; keep the old value, or start a new run")
            state = best["callbacks"][self.state_key]
            self.best_score = state["best_score"]
            self.best_round = state["best_round"]

    # Saving

    def _write(self, trainer: pl.Trainer) -> None:
        with saving_errors():
            trainer.save_checkpoint(self.temporary, weights_only=False)

    def _become_best(self, also_last: bool) -> None:
        """Make the round that was written the best one; it is copied if it will become the last one, too."""
        source = self.temporary
        with saving_errors():
            if also_last:
                source = self.folder / ".best.tmp"
                copy(self.temporary, source)
            replace(source, self.folder / BEST)

    def _become_last(self, trainer: pl.Trainer) -> None:
        """Make the round that was written the last one, and the last one the previous one if it is intact.

        Raises:
            Stopped: After a signal, unless this was the last round.
        """
        self._is_pending = False
        last = self.folder / LAST
        if trainer.is_global_zero:
            with saving_errors():
                if is_intact(last):
                    replace(last, self.folder / PREVIOUS)
                replace(self.temporary, last)
        trainer.strategy.barrier("checkpoint")
        if self._signal and trainer.global_step < trainer.max_steps:
            if trainer.is_global_zero:
                saved = f"saved round {trainer.global_step}"
                sys.stderr.write(f"pfl: {saved}; {self.advice}\n")
            raise Stopped(128 + self._signal)

    # Signals

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._received_signal:
            raise Stopped(128 + number)
        self._received_signal = number
        if processes.rank() == 0:
            name = signal.Signals(number).name
            sys.stderr.write(f"\npfl: {name}: finishing and saving this round; send it again to stop at once\n")

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


@contextmanager
def saving_errors() -> Iterator[None]:
    """Say in one line that there was no room, or no permission, to save."""
    try:
        yield
    except OSError as error:
        problem = f"cannot write '{error.filename}' ({error.strerror})"
        raise MachineError(f"checkpoint: {problem}; the checkpoints before it are unchanged") from error


def _is_trial(trainer: pl.Trainer) -> bool:
    return bool(trainer.sanity_checking or trainer.fast_dev_run)  # type: ignore[attr-defined]
