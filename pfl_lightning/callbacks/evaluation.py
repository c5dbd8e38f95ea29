from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl


class EvaluateStartAndEnd(pl.Callback):
    """Evaluates before the first round and after the last one, regardless of ``val_check_interval``.

    Attributes:
        extra: Whether the current round was only evaluated because the run ended with it. A run that continues from
            there takes back what this evaluation has logged, so as to log what a longer run logs.
    """

    def __init__(self) -> None:
        self.extra = False

    def state_dict(self) -> dict[str, Any]:
        """Whether this round's evaluation is extra."""
        return {"extra": self.extra}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        self.extra = state_dict["extra"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Count the round of an extra evaluation: Lightning has saved before, and makes up for that at the interval."""
        if self.extra:  # in no public way can a loop be told how many rounds it has logged
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
        self.extra = False

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Request a stop after the last round: Lightning evaluates before it stops."""
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell an evaluation at the interval from one that only the end of the run has brought."""
        interval: int | float | None = trainer.val_check_interval
        self.extra = trainer.global_step > 0 and (not isinstance(interval, int) or trainer.global_step % interval != 0)


def is_new(trainer: pl.Trainer) -> bool:
    """Whether training begins with the first round, and not with a checkpoint of round 0."""
    return trainer.global_step == 0 and not trainer.ckpt_path


def is_extra(trainer: pl.Trainer) -> bool:
    """Whether the current round was only evaluated because a run ended with it."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return any(callback.extra for callback in callbacks if isinstance(callback, EvaluateStartAndEnd))


def lasting_rounds(checkpoint: Mapping[str, Any]) -> int:
    """Rounds of which all that was logged stays when a run continues from a checkpoint."""
    states = checkpoint.get("callbacks", {})
    extra = states.get(EvaluateStartAndEnd().state_key, {}).get("extra", False)
    rounds: int = checkpoint["global_step"] - extra
    return rounds
