"""Prepared data of which a machine has one copy: one process makes it, and all that run there map the same memory."""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import torch

from pfl_lightning import processes
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.recipes import Recorded, recipe

OFFER = "PFL_SHARED_DATA"  # environment variable: digest of settings, and the file with what was prepared for them


def once_per_machine(data: Recorded, prepare: Callable[[], None]) -> None:
    """Prepare data in one process of each machine; the others there get the attributes that it sets.

    Tensors among these are in the same memory for all of them, until one is written to. The process that prepares is
    the one that has started the others (``offered``), or the first one of the machine if all call this together. Each
    process prepares its own data where they cannot be shared: outside Linux, if settings hold objects of a program,
    which every process has in its memory already, and, with a warning, if memory is short or a value cannot be pickled.

    Args:
        data: Data that remember their settings.
        prepare: Sets attributes of the data, and fills containers that they have; other changes are not passed on.

    Raises:
        PflError: If it fails; in all processes that call this together, naming the first one where it did.
    """
    digest = _digest(data)
    if digest is None:
        is_ready = False
    elif OFFER in os.environ:
        is_ready = _accept(data, digest)
    else:
        is_ready = processes.count() > 1 and _prepare_together(data, prepare)
    if not is_ready:
        _prepare(data, prepare)


@contextmanager
def offered(data: Recorded) -> Iterator[None]:
    """Let the processes that this one starts within the block have the data that it has prepared.

    Args:
        data: The data, after ``once_per_machine``.
    """
    digest = _digest(data)
    if digest is None:
        yield
        return
    with ExitStack() as stack:
        path = _shared(data, stack)
        os.environ[OFFER] = f"{digest} {path}"
        stack.callback(os.environ.pop, OFFER, None)
        yield


def _digest(data: Recorded) -> str | None:
    """What tells the data from others in another process; None if they cannot be shared."""
    try:
        settings = json.dumps(recipe(data), sort_keys=True)
    except (TypeError, PflError):  # objects of a program, or a class within a function
        return None
    return hashlib.blake2b(settings.encode(), digest_size=16).hexdigest() if sys.platform == "linux" else None


def _prepare(data: Recorded, prepare: Callable[[], None]) -> None:
    """Prepare the data, and keep in mind which attributes that may have changed."""
    before = dict(vars(data))
    prepare()
    changed = [
        name
        for name, value in vars(data).items()
        if name not in before or value is not before[name] or isinstance(value, dict | list | set)
    ]
    vars(data)["_shareable"] = tuple(changed)


def _accept(data: Recorded, digest: str) -> bool:
    """Take what the process that started this one offers, if it is for these settings; whether that worked."""
    offer, _, path = os.environ[OFFER].partition(" ")
    if offer != digest:
        return False
    del os.environ[OFFER]  # from now on the processes prepare data together
    return _take(data, path)


def _prepare_together(data: Recorded, prepare: Callable[[], None]) -> bool:
    """Prepare in the first process of each machine; whether this one has the data then."""
    rank, machines = processes.rank(), processes.gathered(_machine())
    first = machines.index(machines[rank])
    path, failure = "", None
    with ExitStack() as stack:
        if rank == first:
            try:
                _prepare(data, prepare)
                path = _shared(data, stack) if machines.count(machines[rank]) > 1 else ""
            except Exception as error:  # the others wait to hear of it
                failure = error
        told = processes.gathered((path, None if failure is None else one_line(failure)))
        _raise_first([message for _, message in told], failure)
        is_ready = rank == first or _take(data, told[first][0])
        processes.gathered(None)  # all have opened the file before it is closed
    return is_ready


def _raise_first(messages: list[str | None], own: Exception | None) -> None:
    if own is not None:
        raise own
    for process, message in enumerate(messages):
        if message is not None:
            raise PflError(f"{message} (process {process} of {len(messages)})")


def _shared(data: Recorded, stack: ExitStack) -> str:
    """Put what was prepared where other processes find it while the stack is open, and use it from there.

    Returns:
        Path of a file in memory, which is gone with the last process that has it open or mapped; empty if there cannot
        be one.
    """
    try:
        file: BinaryIO = stack.enter_context(os.fdopen(os.memfd_create("pfl_lightning data"), "wb"))
        torch.save({name: vars(data)[name] for name in vars(data)["_shareable"]}, file)
        file.flush()
    except Exception as error:  # whatever a class of the user's makes pickle raise
        _warn(error)
        return ""
    path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    _take(data, path)
    return path


def _take(data: Recorded, path: str) -> bool:
    """Set the attributes that are in another process's file, if it could make one; whether that worked."""
    if not path:
        return False
    try:
        vars(data).update(torch.load(path, mmap=True, weights_only=False))
    except Exception as error:
        _warn(error)
        return False
    return True


def _warn(error: Exception) -> None:
    warnings.warn(
        f"the processes of this machine cannot share their data, so each one reads its own ({one_line(error)})",
        stacklevel=2,
    )


def _machine() -> str:
    """The same for two processes exactly if they can open each other's files in memory."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid4().hex
