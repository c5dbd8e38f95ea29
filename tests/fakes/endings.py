"""Callbacks that end a process in the middle of a run, as settings name them."""

import os

import lightning.pytorch as pl

from pfl_lightning.errors import PflError


class Signalled(pl.Callback):
    """Sends a signal to one process before a round."""

    def __init__(self, rank: int, rounds: int, number: int) -> None:
        self.rank, self.rounds, self.number = rank, rounds, number

    def on_train_batch_start(self, trainer: pl.Trainer, *_) -> None:
        if (trainer.global_rank, trainer.global_step) == (self.rank, self.rounds):
            os.kill(os.getpid(), self.number)


class Failing(pl.Callback):
    """Fails in one process before a round."""

    def __init__(self, rank: int, rounds: int) -> None:
        self.rank, self.rounds = rank, rounds

    def on_train_batch_start(self, trainer: pl.Trainer, *_) -> None:
        if (trainer.global_rank, trainer.global_step) == (self.rank, self.rounds):
            raise PflError("data.root: this disk is broken")
