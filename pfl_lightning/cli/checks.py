"""Checks of what the parser's types cannot say, before anything is built or written."""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import yaml
from jsonargparse import Namespace

from pfl_lightning.bounds import Seed
from pfl_lightning.cli.callbacks import check_callbacks
from pfl_lightning.data.rounds import check_rounds
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.settings import class_name, is_doubling, named_callbacks

# trainer options whose other values make no sense with communication rounds
POSSIBLE: dict[str, tuple[Any, ...]] = {
    "max_epochs": (-1,),
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
STRATEGIES = ("auto", "ddp", "DDPStrategy")  # the others split the model, or start processes without this command
MAY_BE_SEVERAL = {"ClientMetrics"}  # callbacks that a run may have with different options
PLAIN = (str, int, float, dict)  # values of trainer options that are no classes, which check themselves


def check_settings(settings: Namespace) -> None:
    """Refuse settings that make no sense with communication rounds, or that the trainer does not take.

    Args:
        settings: All settings of a run.

    Raises:
        PflError: If there is one.
    """
    for section in ("trainer", "checkpoint", "percentile_errors"):
        if settings[section] is None:  # in a file; the parser refuses it on the command line
            raise PflError(f"{section}: null is not possible; allowed: the options below this key")
    check_sparsity(settings.model.get("init_args", {}))
    check_rounds(settings.trainer.max_steps)
    check_trainer(settings.trainer)


def check_trainer(trainer: Namespace) -> None:
    """Refuse trainer options that make no sense with communication rounds, and what the trainer itself refuses.

    Raises:
        PflError: If there is one.
    """
    for option, possible in POSSIBLE.items():
        if trainer[option] not in possible:
            allowed = ", ".join(dict.fromkeys("null" if value is None else str(value) for value in possible))
            raise PflError(f"trainer.{option}: {trainer[option]} is not possible; allowed: {allowed}")
    check_strategy(trainer.strategy)
    check_interval(trainer.val_check_interval)
    if (every := trainer.log_every_n_steps) is not None and every < 0:
        raise PflError(f"trainer.log_every_n_steps: {every} is not possible; allowed: a number of rounds, from 0")
    if trainer.default_root_dir is None:
        raise PflError("trainer.default_root_dir: null is not possible; allowed: a folder")
    names = [name for name, _ in named_callbacks(trainer.callbacks)]
    if twice := {name for name in names if names.count(name) > 1} - MAY_BE_SEVERAL:
        raise PflError(f"trainer.callbacks: {twice.pop()} is listed twice; allowed: once (null clears the list)")
    if len(doublings := [name for name in names if is_doubling(name)]) > 1:
        raise PflError(f"trainer.callbacks: {' with '.join(doublings)} is not possible; allowed: one of them")
    check_callbacks(trainer)
    plain = {key: value for key, value in vars(trainer).items() if isinstance(value, PLAIN)}
    if refusal(plain):
        for option, value in plain.items():
            if message := refusal({option: value}):
                raise PflError(f"trainer.{option}: {value} is not possible: {message}")
        raise PflError(f"trainer: {refusal(plain)}")


def check_strategy(strategy: Any) -> None:
    """Refuse strategies that split the model, or start processes that do not run the whole command.

    Args:
        strategy: ``trainer.strategy``, a name or a class with its options.

    Raises:
        PflError: If it is one.
    """
    name = class_name(strategy.class_path) if isinstance(strategy, Namespace) else strategy
    start = strategy.get("init_args", {}).get("start_method", "popen") if isinstance(strategy, Namespace) else "popen"
    if name not in STRATEGIES or start != "popen":
        what = name if start == "popen" else f"{name} with start_method: {start}"
        raise PflError(f"trainer.strategy: {what} is not possible; allowed: {', '.join(STRATEGIES)}")


def check_interval(interval: Any) -> None:
    """Refuse what is no number of rounds between two evaluations.

    Raises:
        PflError: If it is none.
    """
    if interval is not None and (type(interval) is not int or interval < 1):
        raise PflError(
            f"trainer.val_check_interval: {interval} is not possible; allowed: a number of rounds, at least 1, or null "
            "to evaluate only before the first round and after the last"
        )


def refusal(options: dict[str, Any]) -> str:
    """What the trainer says against options; empty if it takes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real trainer will say the same
        try:
            pl.Trainer(**{"accelerator": "cpu", **options, "logger": False, "enable_progress_bar": False})
        except Exception as error:
            return one_line(error)
    return ""


def check_sparsity(model: Any) -> None:
    """Refuse a single value for ``model.sparsity``, which has options of its own; the parser lets it pass.

    Raises:
        PflError: If there is one.
    """
    sparsity = model.get("sparsity", Namespace())
    if not isinstance(sparsity, Namespace):
        value = "null" if sparsity is None else sparsity
        raise PflError(f"model.sparsity: {value} is not possible; allowed: the options below this key")


def check_file_seed(file: str, seed: int) -> None:
    """Refuse a settings file with another seed of the data than this run's, which would be lost.

    Args:
        file: The file, which the parser has read.
        seed: The seed of the run.

    Raises:
        PflError: If it has one.
    """
    settings = yaml.safe_load(Path(file).read_text())
    data = settings.get("data")
    options = data.get("init_args", data) if isinstance(data, dict) else {}
    if isinstance(options, dict) and options.get("seed", seed) != seed:
        raise PflError(
            f"data.seed: {options['seed']} is not possible in '{file}': the data's seed follows seed_everything; "
            f"allowed: {seed}, or seed_everything"
        )


def one_seed(seed: bool | int) -> int:
    """The seed of the data set: that of ``seed_everything``, which Lightning also lets be true or false.

    Raises:
        ValueError: If it is not a number, or numpy could not take it.
    """
    if isinstance(seed, bool):
        raise ValueError(f"seed_everything: {str(seed).lower()} is not possible; allowed: a whole number")
    try:
        return int(Seed(seed))
    except ValueError as error:
        raise ValueError(f"seed_everything: {error}") from None
