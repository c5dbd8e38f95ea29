"""Checks of the trainer's options and of callbacks, which the parser's types cannot say."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch import callbacks as lightning_callbacks

from pfl_lightning import callbacks as package_callbacks
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
IN_EVERY_RUN = tuple(vars(package_callbacks)[name] for name in sorted(registry.IN_EVERY_RUN))
NOT_WITH_ROUNDS = (  # they act on the trainer's own steps, or save and average what is no whole round
    lightning_callbacks.BaseFinetuning,
    lightning_callbacks.BasePredictionWriter,
    lightning_callbacks.BatchSizeFinder,
    lightning_callbacks.GradientAccumulationScheduler,
    lightning_callbacks.LearningRateFinder,
    lightning_callbacks.ModelCheckpoint,
    lightning_callbacks.ModelPruning,
    lightning_callbacks.OnExceptionCheckpoint,
    lightning_callbacks.SpikeDetection,
    lightning_callbacks.StochasticWeightAveraging,
    lightning_callbacks.WeightAveraging,
)
NEVER_CALLED = ("on_before_backward", "on_after_backward", "on_before_zero_grad")  # clients train inside a round


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that make no sense with communication rounds.

    Args:
        settings: All settings of a run, as plain values.

    Raises:
        PflError: If there is one.
    """
    sections = {name: options for name, options in settings.items() if name != "seed_everything"}
    arguments = settings["model"].get("init_args", {})
    sections |= {f"model.{group}": arguments.get(group, {}) for group in ("local", "sparsity")}
    for section, options in sections.items():
        is_empty = section == "trainer" and isinstance(options, Mapping) and not POSSIBLE.keys() <= options.keys()
        if not isinstance(options, Mapping) or is_empty:  # what a file leaves empty
            value = "null" if is_empty or options is None else options
            raise PflError(f"{section}: {value} is not possible; allowed: the options below this key")
    trainer = settings["trainer"]
    check_rounds(trainer["max_steps"])
    for option, possible in POSSIBLE.items():
        if trainer[option] not in possible:
            allowed = ", ".join("null" if value is None else str(value) for value in possible)
            raise PflError(f"trainer.{option}: {trainer[option]} is not possible; allowed: {allowed}")
    strategy = _name_of(trainer["strategy"])
    if strategy not in STRATEGIES:
        raise PflError(f"trainer.strategy: {strategy} is not possible; allowed: {', '.join(STRATEGIES)}")
    profiler = _name_of(trainer["profiler"])
    if profiler in ("xla", "XLAProfiler"):  # of TPUs; where their library is missing, it prints a traceback as well
        raise PflError(f"trainer.profiler: {profiler} is not possible; allowed: null, simple, advanced, pytorch")
    interval = trainer["val_check_interval"]
    if interval is not None and (type(interval) is not int or interval < 1):
        what = "a number of rounds, or null to evaluate only before the first round and after the last"
        raise PflError(f"trainer.val_check_interval must be {what}, got {interval}")
    if trainer["default_root_dir"] is None:
        raise PflError("trainer.default_root_dir must be a folder, got null")


def _name_of(part: Any) -> Any:
    """The name of a part of the trainer, which is given by its class or by a word."""
    return class_name(part["class_path"]) if isinstance(part, Mapping) else part


def refuse_several_processes(settings: Mapping[str, Any], command: str) -> None:
    """Refuse several processes in a program, since the others would not run the same program.

    Raises:
        PflError: If the settings ask for them.
    """
    for option in ("devices", "num_nodes"):
        if str(count := settings["trainer"][option]) != "1":
            raise PflError(f"trainer.{option} must be 1 in a program, got {count}; use pfl {command} for more")


def check_callbacks(callbacks: Sequence[pl.Callback]) -> None:
    """Refuse callbacks that every run has, that cannot work with rounds, or that are there twice.

    Args:
        callbacks: Those of the user.

    Raises:
        PflError: If there is one.
    """
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, IN_EVERY_RUN):
            raise PflError(f"trainer.callbacks: {name} is in every run; leave it out")
        if isinstance(callback, NOT_WITH_ROUNDS):
            reason = "clients take the steps, inside of a round, and whole rounds are saved"
            raise PflError(f"trainer.callbacks: {name} does not work with rounds: {reason}")
        if isinstance(callback, lightning_callbacks.EarlyStopping):
            checks_at_end = callback._check_on_train_epoch_end  # it has no public name
            if checks_at_end:
                key = "trainer.callbacks.check_on_train_epoch_end"
                raise PflError(f"{key} must be null, got True: all rounds are one epoch")
        for hook in NEVER_CALLED:
            if getattr(type(callback), hook) is not getattr(pl.Callback, hook):
                warnings.warn(f"{name}.{hook} is never called: clients train inside a round", stacklevel=2)
    repeatable = package_callbacks.ClientMetrics
    names = [type(callback).__name__ for callback in callbacks if not isinstance(callback, repeatable)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise PflError(f"trainer.callbacks: {repeated[0]} is listed twice (null clears the list)")
