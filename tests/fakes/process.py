"""Several processes that train methods together, as the launchers of torch and Lightning start them."""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from conftest import RaggedData
from methods.test_contract import METHODS, NETWORKS

from fakes.forked import SERVER
from pfl_lightning.callbacks import EvaluateStartAndEnd, MetricsTable, PercentileErrors, RoundCheckpoint
from pfl_lightning.contract import several
from pfl_lightning.federation import client_states
from pfl_lightning.objects import clone
from pfl_lightning.runs.run_settings import TRAINER_DEFAULTS
from pfl_lightning.system import Participation


def run_together(count: int, *arguments: Any) -> None:
    """Call ``main`` with the arguments in several processes; wait until they have ended."""
    assert several.run_together(SERVER, count, partial(main, processes=count), *arguments) == []


def main(
    folder: Path,
    rounds: int,
    clients: int,
    dtype: torch.dtype,
    resumed: Path | None = None,
    names: Iterable[str] = METHODS,
    participation: Participation | None = None,
    processes: int = 1,
) -> None:
    """Train methods of the contract test for some rounds, each in a folder of its own.

    Args:
        folder: Where the folders are.
        rounds: Number of rounds in all.
        clients: Number of clients.
        dtype: Float type.
        resumed: Where the folders of runs are that are continued; None for new runs.
        names: Names of the methods.
        participation: Who takes part; all by default.
        processes: Number of processes that are called like this.
    """
    client_states.DEVICE_BLOCK_BYTES = 512  # several blocks for a tensor
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    for name in names:
        method = METHODS[name](network=NETWORKS["mlp"], batch_size=4)
        last = resumed and resumed / name / "checkpoints/last.ckpt"
        os.environ["WORLD_SIZE"] = str(processes)  # Lightning removes it after a run
        data = RaggedData(num_clients=clients, participation=participation and clone(participation))
        train(method, data, rounds, folder / name, last, processes)


def train(method: Any, data: Any, rounds: int, folder: Path, ckpt_path: Path | None, processes: int) -> None:
    """Train with so many processes, with tables and checkpoints."""
    table = MetricsTable(folder)
    callbacks = [EvaluateStartAndEnd(), PercentileErrors(), RoundCheckpoint(), table]
    several = {"accelerator": "cpu", "devices": processes, "strategy": "ddp" if processes > 1 else "auto"}
    own = {"max_steps": rounds, "val_check_interval": 2, "enable_progress_bar": False, "default_root_dir": folder}
    trainer = pl.Trainer(**{**TRAINER_DEFAULTS, **several, **own, "logger": table, "callbacks": callbacks})
    trainer.fit(method, data, ckpt_path=ckpt_path, weights_only=True)
