"""A trainer that trains, and does nothing else."""

from typing import Any

import lightning.pytorch as pl


def bare_trainer(rounds: int, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    """A trainer without evaluations, logs, checkpoints and output, on one device.

    Args:
        rounds: Rounds to train for.
        callbacks: Its callbacks.
        options: Other options of the trainer.
    """
    return pl.Trainer(
        max_steps=rounds,
        max_epochs=-1,
        devices=1,
        callbacks=list(callbacks),
        logger=False,
        log_every_n_steps=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
