"""Which callbacks a run can have beside those that every run has."""

from collections.abc import Iterator, Mapping
from pydoc import locate
from typing import Any

import lightning.pytorch as pl
from jsonargparse import Namespace
from lightning.pytorch import callbacks as theirs

from pfl_lightning.callbacks import (
    EvaluateStartAndEnd,
    MetricsTable,
    PercentileErrors,
    RoundCheckpoint,
    RunFigures,
    RunSummary,
)
from pfl_lightning.callbacks.monitors import CheckMonitors
from pfl_lightning.callbacks.run_folder import RunFolder
from pfl_lightning.errors import PflError
from pfl_lightning.settings import Settings, named_callbacks

BESIDE = (EvaluateStartAndEnd, RunFigures)  # in every run
OPTIONS: dict[type[pl.Callback], str] = {  # callbacks of every run, and where their options are
    RoundCheckpoint: "its options below checkpoint",
    PercentileErrors: "its options below percentile_errors",
    **dict.fromkeys((*BESIDE, RunSummary, MetricsTable, CheckMonitors, RunFolder), "other callbacks"),
}
INSTEAD: dict[type[pl.Callback], tuple[str, str]] = {  # why a callback cannot work with rounds, and what does
    theirs.BaseFinetuning: ("the method says what clients train", "such a method, e.g. --model FedBABU"),
    theirs.BasePredictionWriter: ("there are no predictions to write", "pfl_lightning.methods.load_method"),
    theirs.BatchSizeFinder: ("a batch of the trainer is a whole round", "model.batch_size"),
    theirs.GradientAccumulationScheduler: ("clients take the steps, not the trainer", "model.batch_size"),
    theirs.LambdaCallback: ("settings cannot name functions", "a callback class of your own"),
    theirs.LearningRateFinder: ("clients take the steps, not the trainer", "pfl sweep --vary model.lr=0.1,0.03"),
    theirs.ModelCheckpoint: ("every run saves last.ckpt, previous.ckpt and best.ckpt", "the options of checkpoint"),
    theirs.ModelPruning: ("it would prune behind the method's back", "model.sparsity.prune, or --model DisPFL"),
    theirs.OnExceptionCheckpoint: ("half a round cannot be resumed", "checkpoint.every"),
    theirs.SpikeDetection: ("a round is no step of one loss", "EarlyStopping"),
    theirs.StochasticWeightAveraging: ("it would average what clients keep", "model.server_optimizer"),
    theirs.Timer: ("the trainer has one", "trainer.max_time"),
    theirs.WeightAveraging: ("it would average what clients keep", "model.server_optimizer"),
}
NEVER = ("on_before_backward", "on_after_backward", "on_before_zero_grad")  # clients train inside a round


def check_callbacks(trainer: Namespace) -> None:
    """Refuse callbacks that every run has, that cannot work with rounds, and bars where none is wanted.

    Args:
        trainer: The settings of the trainer.

    Raises:
        PflError: If there is one.
    """
    kinds: list[type[pl.Callback]] = [
        locate(callback["class_path"])  # type: ignore[misc]
        for _, callback in named_callbacks(trainer.callbacks)
    ]
    for kind in kinds:
        for known, options in OPTIONS.items():
            if issubclass(kind, known):
                raise PflError(f"trainer.callbacks: {kind.__name__} is in every run; allowed: {options}")
        for known, (reason, instead) in INSTEAD.items():
            if issubclass(kind, known):
                raise PflError(f"trainer.callbacks: {kind.__name__} is not possible, {reason}; allowed: {instead}")
    bars = [kind.__name__ for kind in kinds if issubclass(kind, theirs.ProgressBar)]
    if len(bars) > 1 or (bars and trainer.enable_progress_bar is False):
        other = bars[1] if len(bars) > 1 else "trainer.enable_progress_bar: false"
        raise PflError(f"trainer.callbacks: {bars[0]} with {other} is not possible; allowed: one of them")


def idle_hooks(callbacks: list[pl.Callback]) -> Iterator[str]:
    """A line for each hook of a callback that is never called: clients train inside a round, not by the trainer."""
    for callback in callbacks:
        for hook in NEVER:
            if getattr(type(callback), hook) is not getattr(pl.Callback, hook):
                yield f"{type(callback).__name__}.{hook} is never called: clients train inside a round"


def refuse_stopped(before: Mapping[str, Any], settings: Settings) -> None:
    """Refuse to continue a run that ``EarlyStopping`` has ended, unless its options are others now.

    Args:
        before: The checkpoint.
        settings: The settings now.

    Raises:
        PflError: If training would go on as if nothing had been.
    """
    then, now = (_early_stopping(each) for each in (before.get("config", {}), settings))
    if has_stopped(before) and then == now:
        raise PflError(
            f"ckpt_path: EarlyStopping has ended this run after round {before['global_step']}; allowed: a larger "
            "trainer.callbacks.patience, or trainer.callbacks without it"
        )


def has_stopped(checkpoint: Mapping[str, Any]) -> bool:
    """Whether ``EarlyStopping`` has ended a run with this checkpoint."""
    states = checkpoint["callbacks"]
    return any(states[key].get("stopping_reason") for key in states if key.startswith("EarlyStopping"))


def _early_stopping(settings: Settings) -> list[Any]:
    callbacks = named_callbacks(settings.get("trainer", {}).get("callbacks"))
    return [callback.get("init_args") for name, callback in callbacks if name == "EarlyStopping"]
