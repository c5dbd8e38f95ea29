from collections.abc import Mapping
from typing import Any, TypeVar

import lightning.pytorch as pl

CallbackT = TypeVar("CallbackT", bound=pl.Callback)


class EvaluateStartAndEnd(pl.Callback):
    """Evaluates before the first round and after the last one, regardless of ``val_check_interval``.

    Attributes:
        extra: The current round, if it was only evaluated because the run ended with it; else 0. A run that continues
            from there takes back what this evaluation has logged, so as to log what a longer run logs.
    """

    def __init__(self) -> None:
        self.extra = 0

    def state_dict(self) -> dict[str, Any]:
        """The round of an extra evaluation."""
        return {"extra": self.extra}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self.extra = state_dict["extra"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the restored round if the interval is another one now and evaluates this round, too."""
        self.extra = unless_due(self.extra, trainer.val_check_interval)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count the round of an extra evaluation: Lightning has saved before, and makes up for that at the interval."""
        if self.extra:  # Lightning has no public way to tell a loop how many rounds it has logged
            trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Run the validation loop in the same way as the training loop does, unless the run is resumed.

        All rounds are one epoch. Before it begins, ``RoundCheckpoint`` has taken over signals.
        """
        if is_new(trainer):
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin a round, which is not evaluated yet."""
        self.extra = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Request a stop after the last round: Lightning evaluates before it stops."""
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell an evaluation at the interval from one that only the end of the run has brought."""
        self.extra = unless_due(trainer.global_step, trainer.val_check_interval)


def unless_due(round_index: int, interval: int | float | None) -> int:
    """A round, or 0 if it is evaluated at the interval."""
    return 0 if isinstance(interval, int) and round_index % interval == 0 else round_index


def is_new(trainer: pl.Trainer) -> bool:
    """Whether training begins with the first round, and not with a checkpoint of round 0."""
    return trainer.global_step == 0 and not trainer.ckpt_path


def is_extra(trainer: pl.Trainer) -> bool:
    """Whether the current round was only evaluated because a run ended with it."""
    return any(callback.extra > 0 for callback in callbacks_of(trainer, EvaluateStartAndEnd))


def callbacks_of(trainer: pl.Trainer, kind: type[CallbackT]) -> list[CallbackT]:
    """The callbacks of a run that are of a class."""
    return [callback for callback in trainer.callbacks if isinstance(callback, kind)]  # type: ignore[attr-defined]


def rounds_kept_on_resume(checkpoint: Mapping[str, Any], interval: int | float | None = None) -> int:
    """Rounds of which all that was logged stays when a run continues from a checkpoint.

    Args:
        checkpoint: The checkpoint.
        interval: The ``val_check_interval`` of the run that continues; by default it is as before.
    """
    extra = checkpoint.get("callbacks", {}).get(EvaluateStartAndEnd().state_key, {}).get("extra", 0)
    rounds: int = checkpoint["global_step"]
    return rounds - 1 if unless_due(extra, interval) else rounds
