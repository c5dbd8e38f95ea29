"""Callbacks that end a process in the middle of a run, or watch it, as settings name them."""

import os
from pathlib import Path

import lightning.pytorch as pl

from pfl_lightning import processes
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


class Impatient(pl.Callback):
    """Waits less long for an answer of other machines."""

    def __init__(self, silence: int) -> None:
        processes.SILENCE = silence


class Listening(pl.Callback):
    """Writes the addresses at which its process listens, as Linux has them, into a file."""

    def on_train_start(self, *_) -> None:
        own = {Path("/proc/self/fd", name).resolve().name for name in os.listdir("/proc/self/fd")}
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for fields in map(str.split, Path(table).read_text().splitlines()[1:]):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                    with open("listening", "a") as file:
                        file.write(f"{fields[1].partition(':')[0]}\n")
