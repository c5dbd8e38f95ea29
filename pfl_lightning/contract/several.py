"""Several processes that train a method together, as launchers start them."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch

from pfl_lightning.contract.subject import LAST, ContractError, Subject, fit, float64, furthest, tensors
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.errors import one_line
from pfl_lightning.methods import Method
from pfl_lightning.tree import Tree

CONTEXT = multiprocessing.get_context("spawn")  # a fork would have none of the threads of torch
SECONDS = 300  # that processes have
TOLERANCE = 1e-10  # of the update, in float64


def trains_in_several_processes(subject: Subject) -> None:
    """Two processes give what one gives."""
    with float64():
        start = tensors(subject.built(subject.data()))
    folders = {count: subject.folder / f"{count}" for count in (1, 2)}
    train(subject.make, subject.data, folders[1], 1)
    if failures := run_together(CONTEXT, 2, train, subject.make, subject.data, folders[2], 2):
        raise ContractError(f"{failures[0]}, with two processes")
    one, two = (tensors_in(folder / LAST) for folder in folders.values())
    update = max((float((one[name] - start[name]).abs().max()) for name in one.keys() & start.keys()), default=1.0)
    difference, name = furthest(one, two)
    if not difference <= TOLERANCE * update:
        raise ContractError(
            f"{name} differs by {difference:.2g} with two processes; each has the rows of its own clients alone, so "
            "take all_rows(self.clients.stack(name), self.num_clients) at the server"
        )


def train(make: Callable[..., Method], data: Callable[..., FederatedDataModule], folder: Path, processes: int) -> None:
    """Train a method for two rounds, in one of so many processes."""
    with float64():
        fit(make(), data(), 2, folder, devices=processes, strategy="ddp" if processes > 1 else "auto")


def tensors_in(checkpoint: Path) -> Tree:
    """The tensors of floats of a checkpoint; packed ones as they are packed."""
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    found: Tree = {}
    for name, entry in state.items():
        parts = entry[:2] if isinstance(entry, tuple) else (entry,)
        found |= {f"{name}{'*' * place}": part for place, part in enumerate(parts) if part.is_floating_point()}
    return found


def run_together(context: SpawnContext, count: int, work: Callable[..., None], *arguments: Any) -> list[str]:
    """Do some work in several new processes, which a launcher of torch could have started.

    Args:
        context: How processes are started.
        count: How many.
        work: The work.
        arguments: Its arguments.

    Returns:
        What went wrong in each of them that has failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    failures = context.SimpleQueue()
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    started = []
    for rank in range(count):
        own = {**settings, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append(context.Process(target=one_of_them, args=(own, failures, work, *arguments)))
    try:
        for process in started:
            process.start()
        for process in started:
            process.join(SECONDS)
        found = []
        while not failures.empty():
            found.append(failures.get())
        if not found and [process.exitcode for process in started] != [0] * count:
            found.append("a process has ended, or did not end")
        return found
    finally:
        for process in started:
            if process.is_alive():
                process.kill()


def one_of_them(
    environment: dict[str, str], failures: SimpleQueue[str], work: Callable[..., None], *arguments: Any
) -> None:
    """Do the work as the process that this environment says."""
    os.environ |= environment
    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what Lightning says about itself
        os.dup2(nowhere, stream)
    try:
        work(*arguments)
    except Exception as error:
        failures.put(f"{type(error).__name__}: {one_line(error)}")
