"""Checks of the trainer's options and of callbacks, which the parser's types cannot say."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.accelerators import AcceleratorRegistry

from pfl_lightning import callbacks as ours
from pfl_lightning.data.rounds import check_rounds
from pfl_lightning.errors import PflError
from pfl_lightning.settings import registry
from pfl_lightning.settings.values import class_name

# trainer options whose other values make no sense with communication rounds
POSSIBLE: dict[str, tuple[Any, ...]] = {
    "max_epochs": (-1,),
    "min_epochs": (None,),
    "min_steps": (None,),  # Lightning would neither stop before the end, nor evaluate then
    "limit_train_batches": (None,),
    "limit_val_batches": (None,),
    "limit_test_batches": (None,),
    "overfit_batches": (0.0,),
    "check_val_every_n_epoch": (None,),
    "num_sanity_val_steps": (0,),
    "accumulate_grad_batches": (1,),
    "gradient_clip_val": (None,),
    "enable_checkpointing": (None, True),
    "precision": (None, "32-true", "64-true", "bf16-true", "bf16-mixed"),
}
STRATEGIES = ("auto", "ddp", "DDPStrategy")  # the others split the model, or do not start the whole command
IN_EVERY_RUN = tuple(vars(ours)[name] for name in sorted(registry.IN_EVERY_RUN))
NOT_WITH_ROUNDS = (  # they act on the trainer's own steps, or save and average what is no whole round
    theirs.BaseFinetuning,
    theirs.BasePredictionWriter,
    theirs.BatchSizeFinder,
    theirs.GradientAccumulationScheduler,
    theirs.LearningRateFinder,
    theirs.ModelCheckpoint,
    theirs.ModelPruning,
    theirs.OnExceptionCheckpoint,
    theirs.SpikeDetection,
    theirs.StochasticWeightAveraging,
    theirs.WeightAveraging,
)
NEVER_CALLED = ("on_before_backward", "on_after_backward", "on_before_zero_grad")  # clients train inside a round


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that make no sense with communication rounds.

    Args:
        settings: All settings of a run, as plain values.

    Raises:
        PflError: If there is one.
    """
    sections = {name: settings[name] for name in ("trainer", "checkpoint", "percentile_errors")}
    sections["model.sparsity"] = settings["model"].get("init_args", {}).get("sparsity", {})
    for section, value in sections.items():
        without = section == "trainer" and isinstance(value, Mapping) and not POSSIBLE.keys() <= value.keys()
        if not isinstance(value, Mapping) or without:
            said = "null" if value is None or without else value  # options of what a file leaves empty have no others
            raise PflError(f"{section}: {said} is not possible; allowed: the options below this key")
    check_trainer(settings["trainer"])


def check_trainer(trainer: Mapping[str, Any]) -> None:
    """Refuse trainer options that make no sense with communication rounds.

    Args:
        trainer: The options, as plain values.

    Raises:
        PflError: If there is one.
    """
    check_rounds(trainer["max_steps"])
    for option, possible in POSSIBLE.items():
        if trainer[option] not in possible:
            allowed = ", ".join("null" if value is None else str(value) for value in possible)
            raise PflError(f"trainer.{option}: {trainer[option]} is not possible; allowed: {allowed}")
    strategy = trainer["strategy"]
    name = class_name(strategy["class_path"]) if isinstance(strategy, Mapping) else strategy
    if name not in STRATEGIES:
        raise PflError(f"trainer.strategy: {name} is not possible; allowed: {', '.join(STRATEGIES)}")
    interval = trainer["val_check_interval"]
    if interval is not None and (type(interval) is not int or interval < 1):
        raise PflError(
            f"trainer.val_check_interval: {interval} is not possible; allowed: a number of rounds, at least 1, or null "
            "to evaluate only before the first round and after the last"
        )
    if trainer["default_root_dir"] is None:
        raise PflError("trainer.default_root_dir: null is not possible; allowed: a folder")


def check_accelerator(accelerator: Any) -> None:
    """Refuse an accelerator that is not on this machine; the one that plans a sweep may lack it.

    Args:
        accelerator: Its name, or an object, which Lightning checks.

    Raises:
        PflError: If it is not there.
    """
    here = {name for name, entry in AcceleratorRegistry.items() if entry["accelerator"].is_available()}
    here |= {"auto", "gpu"} if here & {"cuda", "mps"} else {"auto"}
    if isinstance(accelerator, str) and accelerator not in here:
        allowed = ", ".join(sorted(here))
        raise PflError(f"trainer.accelerator: {accelerator} is not possible on this machine; allowed: {allowed}")


def refuse_several_processes(settings: Mapping[str, Any], command: str) -> None:
    """Refuse several processes in a program, since the others would not run the same program.

    Raises:
        PflError: If the settings ask for them.
    """
    for option in ("devices", "num_nodes"):
        if str(count := settings["trainer"][option]) != "1":
            raise PflError(f"trainer.{option}: must be 1 in a program, got {count}; use pfl {command} for more")


def check_callbacks(callbacks: Sequence[pl.Callback], bar: bool) -> None:
    """Refuse callbacks that every run has, that cannot work with rounds, or that are there twice.

    Args:
        callbacks: Those of the user.
        bar: Whether a progress bar is wanted.

    Raises:
        PflError: If there is one.
    """
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, IN_EVERY_RUN):
            raise PflError(f"trainer.callbacks: {name} is in every run; allowed: others, see pfl list callbacks")
        if isinstance(callback, NOT_WITH_ROUNDS):
            why = "clients take the steps, inside of a round, and whole rounds are saved"
            raise PflError(f"trainer.callbacks: {name} is not possible, {why}; allowed: others")
        if isinstance(callback, theirs.EarlyStopping) and callback._check_on_train_epoch_end:
            key = "trainer.callbacks.check_on_train_epoch_end"
            raise PflError(f"{key}: True is not possible, all rounds are one epoch; allowed: null")
        for hook in NEVER_CALLED:
            if getattr(type(callback), hook) is not getattr(pl.Callback, hook):
                warnings.warn(f"{name}.{hook} is never called: clients train inside a round", stacklevel=2)
    names = [type(callback).__name__ for callback in callbacks if not isinstance(callback, ours.ClientMetrics)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise PflError(f"trainer.callbacks: {twice[0]} is listed twice; allowed: once (null clears the list)")
    bars = [type(callback).__name__ for callback in callbacks if isinstance(callback, theirs.ProgressBar)]
    if len(found := [*bars, *([] if bar else ["trainer.enable_progress_bar: false"])]) > 1:
        raise PflError(f"trainer.callbacks: {' with '.join(found)} is not possible; allowed: one of them")
