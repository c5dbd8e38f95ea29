"""What callbacks monitor, such as Lightning's ``EarlyStopping``."""

from typing import Any, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from pfl_lightning.callbacks.evaluation import is_extra
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import PflError
from pfl_lightning.methods import Method, method_of
from pfl_lightning.metrics import ClientMetric
from pfl_lightning.score_kind import ACCURACY, LOSS, ScoreKind, headline

LOWER_IS_BETTER = {LOSS.name, ACCURACY.error_name, "std", "left_out"}


class CheckMonitors(pl.Callback):
    """Refuses to monitor what is not logged, or to take the worst score for the best, or to train without time left.

    A resumed run has its own patience.

    What ``EarlyStopping`` has seen in an evaluation that only the end of a run has brought is forgotten if the run is
    extended.

    It comes before such callbacks, and checks at the first evaluation, before the first round.
    """

    def __init__(self) -> None:
        self.patience: dict[EarlyStopping, int] = {}
        self.checked = False
        self.before: dict[str, Any] = {}  # state of each EarlyStopping before the last evaluation

    def state_dict(self) -> dict[str, Any]:
        """What each ``EarlyStopping`` was before the last evaluation; nothing without one."""
        return {"before": self.before} if self.before else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it from there."""
        self.before = state_dict["before"]

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Remember the patience: restoring a checkpoint overwrites it."""
        self.patience = {callback: callback.patience for callback in trainer.early_stopping_callbacks}
        self.checked = stage != "fit"

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse a run that has no time left, which would not even begin.

        Raises:
            PflError: If its time was over before it was resumed.
        """
        timers = [each for each in trainer.callbacks if isinstance(each, Timer)]  # type: ignore[attr-defined]
        left = [timer.time_remaining() for timer in timers if trainer.ckpt_path is not None]
        if any(each is not None and each <= 0 for each in left):
            raise PflError("trainer.max_time: all of it is spent, by all parts of the run; allowed: a longer one")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Apply this run's patience; what has stopped the run before has not stopped it now.

        A new run begins with nothing, even if another one has used the same object.
        """
        for callback, patience in self.patience.items():
            if trainer.ckpt_path is None:
                callback.load_state_dict(EarlyStopping(callback.monitor, mode=callback.mode).state_dict())
            elif is_extra(trainer) and callback.state_key in self.before:
                callback.load_state_dict(self.before[callback.state_key])
            callback.patience, callback.stopping_reason = patience, EarlyStoppingReason.NOT_STOPPED

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember what ``EarlyStopping`` is now."""
        self.before = {callback.state_key: callback.state_dict() for callback in self.patience}

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse to monitor what this first evaluation has not logged, or to take its worst score for the best.

        Raises:
            PflError: If a callback would do so.
        """
        if self.checked:
            return
        logged = [name for name in trainer.callback_metrics if not name.startswith(("test/", "choice/", "step"))]
        others = [each for each in trainer.callbacks if not isinstance(each, Checkpoint)]  # type: ignore[attr-defined]
        for monitor in monitored(others):
            if monitor not in logged:
                raise PflError(f"trainer.callbacks.monitor: {monitor} is not logged; allowed: {', '.join(logged)}")
        for callback in others:
            check_mode(callback, method_of(pl_module))
        self.checked = True


def monitored(callbacks: list[pl.Callback]) -> list[str]:
    """The values that callbacks monitor."""
    names = [getattr(callback, "monitor", None) for callback in callbacks]
    return [name for name in names if isinstance(name, str)]


def check_mode(callback: pl.Callback, method: Method) -> None:
    """Refuse the mode ``min``, which is Lightning's default, for a validation score of which more is better.

    Raises:
        PflError: If a callback has it, or ``max`` for the opposite.
    """
    monitor, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
    if not isinstance(monitor, str) or not monitor.startswith("val/") or mode not in ("min", "max"):
        return
    right, better = ("max", "more") if higher_is_better(monitor, method) else ("min", "less")
    if mode != right:
        problem = f"{mode} is not possible for {monitor}, of which {better} is better"
        raise PflError(f"trainer.callbacks.mode: {problem}; allowed: {right}")


def higher_is_better(value: str, method: Method) -> bool:
    """Whether more is better of a logged value, such as ``val/global/accuracy/mean``."""
    others = [cast(ClientMetric, metric).score_kind for metric in method.evaluator.others.values()]
    falling = {score_kind.name for score_kind in others if not score_kind.higher_is_better}
    return not (LOWER_IS_BETTER | falling) & set(value.split("/"))


def check_monitor(key: str, monitor: str, method: Method, data: FederatedDataModule) -> None:
    """Refuse to select by test data, or by a model that is not evaluated on validation samples.

    Args:
        key: The option that names the value.
        monitor: Name of the logged value.
        method: The method, built for the data.
        data: The data set, after its ``setup``.

    Raises:
        PflError: If it would do so.
    """
    split, _, rest = monitor.partition("/")
    if split in ("test", "choice"):
        raise PflError(f"{key}: {monitor} would select on test data; allowed: a name starting with val/")
    if split == "val" and split not in data.eval_splits:
        raise PflError(f"{key}: {monitor} is not there without validation samples; allowed: data.val_fraction above 0")
    first = headline("val", score_kind_of(data))
    if split == "val" and monitor != first and rest.partition("/")[0] not in method.eval_models:
        allowed = ", ".join([first, *(mean_score(model, data) for model in method.eval_models)])
        raise PflError(f"{key}: {monitor} is not logged; allowed: {allowed}")


def score_kind_of(data: FederatedDataModule) -> ScoreKind:
    """What clients are evaluated by on test and validation samples."""
    return LOSS if data.regression else ACCURACY


def mean_score(model: str, data: FederatedDataModule) -> str:
    """Name of a model's mean validation score."""
    return f"val/{model}/{score_kind_of(data).name}/mean"


def early_stop(trainer: pl.Trainer) -> str:
    """Why a run ended before its last round; empty if it did not."""
    if trainer.global_step >= trainer.max_steps:
        return ""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, EarlyStopping) and callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
            return str(callback.stopping_reason_message).removesuffix(" Signaling Trainer to stop.")
        if isinstance(callback, Timer) and (left := callback.time_remaining()) is not None and left <= 0:
            return "trainer.max_time is over"
    return "a callback asked for it"
