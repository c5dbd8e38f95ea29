"""Data of which a machine has one copy: one process prepares it, and all that run there map the same memory."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import torch

from pfl_lightning import files, processes
from pfl_lightning.errors import PflError, one_line


def once_per_machine(data: object, prepare: Callable[[], None]) -> None:
    """Prepare data in the first process of each machine; the others there get the attributes that this sets.

    The tensors in these attributes, however deep, are in the same memory for all processes; one that writes to them
    gets a copy of what it writes to. Each process prepares its own data outside Linux and, with a warning, if they do
    not fit into memory once more or cannot be pickled.

    Args:
        data: What gets the attributes.
        prepare: Sets attributes of the data, or fills containers in them; other changes are not passed on.

    Raises:
        PflError: If it fails in any process, in all of them.
    """
    if processes.count() == 1:
        prepare()
        return
    machines = processes.gathered(_machine())
    machine = machines[processes.rank()]
    first, has_others = machines.index(machine), machines.count(machine) > 1
    path, failure, is_first = "", None, processes.rank() == first
    with ExitStack() as open_files:
        if is_first:
            before = dict(vars(data))
            try:
                prepare()
                path = _share(data, _changed(data, before), open_files) if has_others else ""
            except Exception as error:  # the others wait to hear of it
                failure = error
        told = processes.gathered((path, None if failure is None else one_line(failure)))
        _raise_any([message for _, message in told], failure)
        is_ready = is_first or _take(data, told[first][0])
        processes.gathered(None)  # all have mapped the file before it is closed
    if not is_ready:
        prepare()


def _changed(data: object, before: dict[str, object]) -> list[str]:
    """Names of the attributes that are new, or others than before, or containers, which may have been filled."""
    return [
        name
        for name, value in vars(data).items()
        if name not in before or value is not before[name] or isinstance(value, dict | list | set)
    ]


def _share(data: object, names: Sequence[str], open_files: ExitStack) -> str:
    """Put attributes where other processes find them while the stack is open, and use them from there.

    Returns:
        Path of a file in memory, which is gone with the last process that has it open or mapped, however that ends;
        empty if there cannot be one.
    """
    if sys.platform != "linux":
        return ""
    try:
        file = open_files.enter_context(os.fdopen(os.memfd_create("pfl_lightning data"), "wb"))
        torch.save({name: vars(data)[name] for name in names}, file)
        file.flush()
    except Exception as error:  # whatever an object of the user's makes pickle raise
        _warn(files.root_cause(error))
        return ""
    path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    _take(data, path)
    return path


def _take(data: object, path: str) -> bool:
    """Set the attributes that are in a file, if there is one; whether that worked."""
    if not path:
        return False
    try:
        vars(data).update(torch.load(path, mmap=True, weights_only=False))
    except Exception as error:
        _warn(error)
        return False
    return True


def _raise_any(messages: Sequence[str | None], own: Exception | None) -> None:
    if own is not None:
        raise own
    for rank, message in enumerate(messages):
        if message is not None:
            raise PflError(f"rank {rank} of {len(messages)}: {message}")


def _warn(error: BaseException) -> None:
    reason = one_line(error)
    warnings.warn(f"processes of this machine cannot share the data, so each has its own ({reason})", stacklevel=2)


def _machine() -> str:
    """The same for two processes exactly if one finds the other's files under its process id."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return uuid4().hex
