"""A trainer that trains, and does nothing else."""

from typing import Any

import lightning.pytorch as pl

from pfl_lightning.runs.run_settings import TRAINER_DEFAULTS


def bare_trainer(rounds: int, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    """A trainer without evaluations, logs, checkpoints and output, on one device.

    Args:
        rounds: Rounds to train for.
        callbacks: Its callbacks.
        options: Other options of the trainer.
    """
    off = {"logger": False, "limit_val_batches": 0, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(**{**TRAINER_DEFAULTS, **off, "max_steps": rounds, "callbacks": list(callbacks), **options})
