import os
import shutil
import signal
import sys
import threading
import zipfile
from types import FrameType
from typing import Any, NoReturn

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn

from pfl_lightning.callbacks.run_folder import CHECKPOINTS, folder_of
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method, method_of
from pfl_lightning.quantity import LOSS

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


class Stopped(SystemExit):
    """A signal ended the run after a complete, saved round; the exit code is 128 plus the signal's number."""


class RoundCheckpoint(Checkpoint):
    """Saves a checkpoint at each evaluation: ``last.ckpt``, the one before it (``previous.ckpt``) and ``best.ckpt``.

    A checkpoint only appears under its name when it is complete on disk. On SIGINT or SIGTERM the run finishes the
    current round, saves it and exits with code 130 or 143; a second signal stops it at once.

    Args:
        monitor: Logged value that selects the best checkpoint; larger is better, except for a loss. Default: the mean
            validation score of the method's first evaluated model; without validation samples there is no best
            checkpoint.
    """

    def __init__(self, monitor: str | None = None) -> None:
        self.monitor = monitor
        self.best_score = -torch.inf
        self.best_round = 0
        self._signal: int | None = None
        self._saved = False
        self._handlers: dict[int, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """The best round and its score."""
        return {"best_score": self.best_score, "best_round": self.best_round}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best round and its score."""
        self.best_score, self.best_round = state_dict["best_score"], state_dict["best_round"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Set the folder.

        Raises:
            PflError: If ``monitor`` is a result of test clients.
        """
        if self.monitor is not None and self.monitor.startswith(("test/", "choice/")):
            raise PflError(
                f"checkpoint.monitor: {self.monitor} would select on test data; allowed: a name starting with val/"
            )
        self.folder = folder_of(trainer) / CHECKPOINTS

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install signal handlers, after Lightning has installed its own."""
        self._signal, self._saved = None, False
        if threading.current_thread() is threading.main_thread():
            self._handlers = {
                number: signal.signal(number, self._stop_later) for number in (signal.SIGINT, signal.SIGTERM)
            }

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Save after a signal, unless this round's evaluation is still to come and will save."""
        if self._signal is not None and not self._evaluation_follows(trainer):
            self._save(trainer)
            self._saved = True

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Stop after the saved round; only now has Lightning logged its values."""
        if self._saved:
            self._stop(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the round that was evaluated."""
        is_trial = trainer.sanity_checking or trainer.fast_dev_run  # type: ignore[attr-defined]
        if trainer.state.fn != TrainerFn.FITTING or is_trial:
            return
        monitor = self.monitor or self._usual_monitor(method_of(pl_module))
        if self.monitor is not None and monitor not in trainer.callback_metrics:
            known = ", ".join(name for name in trainer.callback_metrics if name.startswith("val/"))
            raise PflError(f"checkpoint.monitor: {monitor} is not logged; allowed: {known}")
        sign = -1 if f"/{LOSS.name}/" in monitor else 1
        score = sign * float(trainer.callback_metrics.get(monitor, -sign * torch.inf))
        if is_best := score > self.best_score:
            self.best_score, self.best_round = score, trainer.global_step
        self._save(trainer)
        if is_best and trainer.is_global_zero:
            shutil.copyfile(self.folder / LAST, self.folder / ".best.tmp")
            os.replace(self.folder / ".best.tmp", self.folder / BEST)
        if self._signal is not None:
            self._stop(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the previous signal handlers."""
        self._restore_handlers()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Restore the previous signal handlers."""
        self._restore_handlers()

    @staticmethod
    def _usual_monitor(method: Method) -> str:
        model = method.judged_models[0]
        return f"val/{model}/{method.metrics[f'test/{model}'].quantity.name}/mean"

    def _stop_later(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            raise Stopped(128 + number)
        self._signal = number
        sys.stderr.write(
            f"\npfl: {signal.Signals(number).name}: finishing and saving this round; send it again to stop at once\n"
        )

    def _evaluation_follows(self, trainer: pl.Trainer) -> bool:
        return trainer.should_stop or trainer.global_step % (trainer.val_check_batch or 1) == 0

    def _stop(self, trainer: pl.Trainer) -> NoReturn:
        assert self._signal is not None
        sys.stderr.write(f"pfl: saved round {trainer.global_step}; add --ckpt_path last to the command to continue\n")
        raise Stopped(128 + self._signal)

    def _save(self, trainer: pl.Trainer) -> None:
        """Write a temporary file, then rename it to the last checkpoint."""
        temporary, last = self.folder / ".last.tmp", self.folder / LAST
        trainer.save_checkpoint(temporary, weights_only=False)
        if trainer.is_global_zero:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            if zipfile.is_zipfile(last):  # a truncated file must not replace the previous checkpoint
                os.replace(last, self.folder / PREVIOUS)
            os.replace(temporary, last)
        trainer.strategy.barrier("checkpoint")

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
