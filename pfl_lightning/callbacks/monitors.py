"""What callbacks monitor, such as Lightning's ``EarlyStopping``."""

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from pfl_lightning.callbacks.evaluation import callbacks_of, is_extra
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method, method_of
from pfl_lightning.score_kind import ACCURACY, LOSS, headline

LOWER_IS_BETTER = {LOSS.name, ACCURACY.error_name, "std", "left_out"}


class CheckMonitors(pl.Callback):
    """Rejects monitors that are not logged or have the wrong mode, and runs without time left.

    The check takes place at the first evaluation, before the first round; the callback comes before those that it
    checks. A resumed run applies its own patience. If a run is extended, ``EarlyStopping`` forgets what it saw in the
    evaluation that took place only because the run had ended.
    """

    def __init__(self) -> None:
        self.patience: dict[EarlyStopping, int] = {}
        self.checked = False
        self.previous_states: dict[str, Any] = {}  # of each EarlyStopping, before the last evaluation

    def state_dict(self) -> dict[str, Any]:
        """The state of each ``EarlyStopping`` before the last evaluation; nothing without one."""
        return {"before": self.previous_states} if self.previous_states else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states before the last evaluation."""
        self.previous_states = state_dict["before"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Store the patience, which restoring a checkpoint overwrites."""
        self.patience = {callback: callback.patience for callback in trainer.early_stopping_callbacks}
        self.checked = stage != "fit"

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reject a resumed run that has no time left.

        Raises:
            PflError: If its earlier parts have used up the time.
        """
        if trainer.ckpt_path is not None and is_out_of_time(trainer):
            raise PflError("trainer.max_time: the run has already used it up (earlier parts count); set a longer one")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply this run's patience, and clear why the run was stopped before it was resumed.

        A new run starts without a state, even if another one has used the same object.
        """
        for callback, patience in self.patience.items():
            if trainer.ckpt_path is None:
                callback.load_state_dict(EarlyStopping(callback.monitor, mode=callback.mode).state_dict())
            elif is_extra(trainer) and callback.state_key in self.previous_states:
                callback.load_state_dict(self.previous_states[callback.state_key])
            callback.patience = patience
            callback.stopping_reason = EarlyStoppingReason.NOT_STOPPED

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the state of each ``EarlyStopping``."""
        self.previous_states = {callback.state_key: callback.state_dict() for callback in self.patience}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check the monitors against what the first evaluation has logged.

        Raises:
            PflError: If one is not logged, or its mode takes the worst score for the best.
        """
        if self.checked:
            return
        logged = [name for name in trainer.callback_metrics if not name.startswith(("test/", "choice/", "step"))]
        for callback in callbacks_of(trainer, pl.Callback):
            monitor = getattr(callback, "monitor", None)
            if isinstance(callback, Checkpoint) or not isinstance(monitor, str):
                continue
            if monitor not in logged:
                raise PflError(f"trainer.callbacks.monitor: {monitor} is not logged; allowed: {', '.join(logged)}")
            expected, better = ("max", "more") if higher_is_better(monitor, method_of(pl_module)) else ("min", "less")
            mode = getattr(callback, "mode", None)
            if monitor.startswith("val/") and mode in ("min", "max") and mode != expected:  # min is Lightning's default
                problem = f"must be {expected} for {monitor}, of which {better} is better, got {mode}"
                raise PflError(f"trainer.callbacks.mode {problem}")
        self.checked = True


def monitored(callbacks: list[pl.Callback]) -> list[str]:
    """The values that callbacks monitor."""
    names = [getattr(callback, "monitor", None) for callback in callbacks]
    return [name for name in names if isinstance(name, str)]


def higher_is_better(value: str, method: Method) -> bool:
    """Whether more is better of a logged value, such as ``val/global/accuracy/mean``."""
    score_kinds = [method.task.score, *(metric.score_kind for metric in method.evaluator.others.values())]
    falling = {score_kind.name for score_kind in score_kinds if not score_kind.higher_is_better}
    return not (LOWER_IS_BETTER | falling) & set(value.split("/"))


def check_monitor(key: str, monitor: str, method: Method, data: FederatedDataModule) -> None:
    """Reject a monitor on test data, or of a model that is not evaluated on validation samples.

    Args:
        key: The option that names the value.
        monitor: Name of the logged value.
        method: The method, built for the data.
        data: The data set, after its ``setup``.

    Raises:
        PflError: If the monitor is one of these.
    """
    split, _, rest = monitor.partition("/")
    if split in ("test", "choice"):
        raise PflError(f"{key}: {monitor} would select on test data; use a name starting with val/")
    if split == "val" and split not in data.eval_splits:
        raise PflError(f"{key}: {monitor} needs validation samples; set data.val_fraction above 0")
    first = headline("val", method.task.score)
    if split == "val" and monitor != first and rest.partition("/")[0] not in method.eval_models:
        allowed = ", ".join([first, *(mean_score(model, method) for model in method.eval_models)])
        raise PflError(f"{key}: {monitor} is not logged; allowed: {allowed}")


def mean_score(model: str, method: Method) -> str:
    """Name of a model's mean validation score."""
    return f"val/{model}/{method.task.score.name}/mean"


def early_stop(trainer: pl.Trainer) -> str:
    """Why a run ended before its last round; empty if it did not."""
    if trainer.global_step >= trainer.max_steps:
        return ""
    for callback in trainer.early_stopping_callbacks:
        if callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
            return str(callback.stopping_reason_message).removesuffix(" Signaling Trainer to stop.")
    return "trainer.max_time is over" if is_out_of_time(trainer) else "a callback asked for it"


def is_out_of_time(trainer: pl.Trainer) -> bool:
    """Whether a ``Timer`` of the run has no time left."""
    seconds = [timer.time_remaining() for timer in callbacks_of(trainer, Timer)]
    return any(remaining is not None and remaining <= 0 for remaining in seconds)
