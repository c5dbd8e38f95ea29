"""Reading of checkpoints: nothing is built from a file that is damaged, or that lacks or distorts an entry."""

import reprlib
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.errors import PflError
from pfl_lightning.federation.checkpoint_entries import (
    ANYTHING,
    CHANGED_ROWS,
    COUNT,
    METHOD,
    NUMBER,
    OPTIMIZER,
    ROUNDS,
    RUN,
    STORED,
    TRAINING,
    YOUNGER,
    Key,
    Kind,
)
from pfl_lightning.files import is_intact

Content = dict[str, Any]
CLIENTS = "clients"  # entry that says whose rows are there, if these are not all
FILE = "file"  # entry with the path that a checkpoint was read from; it is not in the file
MISSING = object()


class DamagedError(PflError):
    """A checkpoint is truncated, or some of its bytes have changed."""


def read_checkpoint(path: str | PathLike[str]) -> Content:
    """Read a checkpoint of this package, onto the CPU.

    Args:
        path: The file.

    Returns:
        Plain values and tensors, and the path as ``file``.

    Raises:
        PflError: If the file is no checkpoint of this package, or lacks or distorts an entry from which a method is
            made again; a ``DamagedError`` if it is not complete, or some of its bytes have changed.
        OSError: If it cannot be opened.
    """
    with open(path, "rb"):
        pass
    if not is_intact(Path(path)):
        raise DamagedError(f"ckpt_path: '{path}' is damaged or not complete; allowed: a checkpoint of pfl fit")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a file from elsewhere makes torch raise
        raise PflError(f"ckpt_path: '{path}' is not possible; allowed: a checkpoint of pfl fit") from error
    if not isinstance(content, dict):
        raise PflError(f"ckpt_path: '{path}' holds {_short(content)}; allowed: a checkpoint of pfl fit")
    content[FILE] = str(path)
    check_method(content)
    return content


def check_method(content: Content) -> None:
    """Check the entries from which a method is made again.

    Raises:
        PflError: If one is missing or wrong.
    """
    _check(content, METHOD)
    _check(content, {key: kind for key, kind in YOUNGER.items() if _at(content, key) is not MISSING})
    _check(content, {("state_dict", name): STORED for name in content["state_dict"]})
    if CLIENTS in content:
        _check(content, CHANGED_ROWS)
    _check_rounds(content, ROUNDS[:1])


def check_training(content: Content) -> None:
    """Check the entries from which training continues.

    Raises:
        PflError: If one is missing or wrong.
    """
    _check(content, TRAINING)
    _check_rounds(content, ROUNDS)


def check_run(content: Content) -> None:
    """Check the entries that ``pfl fit`` adds: the settings of the run, and the fingerprint of its data.

    Raises:
        PflError: If one is missing or wrong.
    """
    _check(content, RUN)


def check_state(content: Content, name: str, example: Mapping[str, Any]) -> None:
    """Check the state of a callback: it needs the names of an example, and numbers where that has numbers.

    Raises:
        PflError: If it is wrong.
    """
    for entry, value in example.items():
        _check(content, {("callbacks", name, entry): NUMBER if NUMBER.holds(value) else ANYTHING})


def check_shape(content: Content, built_for: Mapping[str, Any]) -> None:
    """Check that a checkpoint's method was built for the same inputs, classes and clients.

    Raises:
        PflError: If it was not.
    """
    for name, now in built_for.items():
        was = content["shape"].get(name, now)  # older checkpoints lack one
        if was != now:
            raise refusal(content, f"shape.{name}: {_short(was)} is not possible; allowed: {now}, as the data set has")


def check_given(content: Content, given: Mapping[str, str | None]) -> None:
    """Check that the objects that a checkpoint does not hold are given again.

    Args:
        content: A checkpoint.
        given: Import paths of these objects, or None, by option.

    Raises:
        PflError: If one is missing or of another kind.
    """
    for name, now in given.items():
        if (was := content["given"].get(name)) != now:
            raise refusal(content, f"{name}: {was or 'none'} in the checkpoint, {now or 'none'} now; allowed: the same")


def check_ids(content: Content) -> int:
    """Check which clients' rows a checkpoint has.

    Returns:
        Their number.

    Raises:
        PflError: If one of them is no client, or is there twice.
    """
    clients = content["shape"]["num_clients"]
    if CLIENTS not in content:
        return int(clients)
    ids = content[CLIENTS]["ids"]
    if len(ids.unique()) != len(ids) or not ((ids >= 0) & (ids < clients)).all():
        raise refusal(content, f"{CLIENTS}.ids: {_short(ids)} is not possible; allowed: different ids below {clients}")
    return len(ids)


def check_tensors(content: Content, expected: Mapping[str, Tensor], place: Key = ("state_dict",)) -> None:
    """Check that the tensors at a place in a checkpoint, unpacked, have the names, shapes and types of these.

    Raises:
        PflError: If one is missing, wrong, or too many.
    """
    found, where = _at(content, place), ".".join(map(str, place))
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            problem = "is missing" if name not in found else "is one too many"
            raise refusal(content, f"{where}.{name} {problem} for this method, network and data")
        was, now = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (found[name], expected[name]))
        if was != now:
            raise refusal(content, f"{where}.{name}: {was} is not possible; allowed: {now}")


def check_optimizer_state(content: Content, parameters: Sequence[Tensor]) -> None:
    """Check that what the server's optimizer keeps of each parameter has the shape of that, or is a single number.

    Raises:
        PflError: If something has not.
    """
    states = _at(content, (*OPTIMIZER, "state"))
    for place, state in states.items() if states is not MISSING else ():  # a model may be saved without
        for name, value in state.items():
            shape = tuple(parameters[place].shape) if place < len(parameters) else None
            if shape is None or (isinstance(value, Tensor) and value.ndim and tuple(value.shape) != shape):
                raise refusal(content, f"optimizer_states.0.state.{place}.{name}: no parameter has this shape")


def refusal(content: Content, message: str) -> PflError:
    """The error that refuses a checkpoint, with the name of its file if that is known."""
    return PflError(f"ckpt_path: '{content[FILE]}': {message}" if FILE in content else f"checkpoint: {message}")


def _check(content: Content, kinds: Mapping[Key, Kind]) -> None:
    for key, kind in kinds.items():
        value, name = _at(content, key), ".".join(map(str, key))
        if value is MISSING:
            raise refusal(content, f"{name} is missing")
        if not kind.holds(value):
            raise refusal(content, f"{name}: {_short(value)} is not possible; allowed: {kind.words}")


def _check_rounds(content: Content, keys: Sequence[Key]) -> None:
    for key in keys:
        if not COUNT.holds(rounds := _at(content, key)) or rounds != content["global_step"]:
            name, step = ".".join(map(str, key)), content["global_step"]
            raise refusal(content, f"{name}: {_short(rounds)} is not possible; allowed: {step}, as global_step says")


def _at(content: Any, key: Key) -> Any:
    for step in key:
        try:
            content = content[step]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return content


def _short(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())
