"""Reads checkpoints safely: runs no code from files, rejects damaged ones, says in one line what does not fit."""

from argparse import ArgumentError
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.errors import PflError, SettingsError, one_line
from pfl_lightning.files import is_intact
from pfl_lightning.objects import known_subclass
from pfl_lightning.tasks import Task

Content = dict[str, Any]
FORMAT = 2  # of the checkpoints that this version writes and reads
FILE = "file"  # entry with the path that a checkpoint was read from; it is not in the file
PLAIN = (bool, int, float, str, type(None))
# what wrong entries raise
WRONG = (ArgumentError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class DamagedError(PflError):
    """A checkpoint is truncated, or some of its bytes have changed."""


def read_checkpoint(path: str | PathLike[str]) -> Content:
    """Read a checkpoint of this package, onto the CPU.

    Args:
        path: The file.

    Returns:
        Plain values and tensors, and the path as ``file``.

    Raises:
        PflError: If the file is no checkpoint of this version; a ``DamagedError`` if it is not complete, or some of
            its bytes have changed.
        OSError: If it cannot be opened.
    """
    with open(path, "rb"):
        pass
    if not is_intact(Path(path)):
        raise DamagedError(f"ckpt_path: '{path}' is damaged or not complete; allowed: a checkpoint of pfl fit")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many kinds for foreign files
        raise PflError(f"ckpt_path: '{path}' is not possible; allowed: a checkpoint of pfl fit") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PflError(f"ckpt_path: '{path}' is not possible; allowed: a checkpoint that this version has written")
    return {**content, FILE: str(path)}


def check_readable(value: Any, key: str = "") -> None:
    """Check that ``read_checkpoint`` will read a value, such as a checkpoint that is about to be saved.

    Args:
        value: The value.
        key: Its key in the checkpoint.

    Raises:
        PflError: If it will not: it would run code of the class of something in it.
    """
    if type(value) in (dict, OrderedDict):
        for name, inner in value.items():
            check_readable(name, key)
            check_readable(inner, f"{key}.{name}".lstrip("."))
    elif type(value) in (list, tuple):
        for place, inner in enumerate(value):
            check_readable(inner, f"{key}.{place}")
    elif not isinstance(value, Tensor) and type(value) not in PLAIN:
        try:
            torch.save(value, file := BytesIO())
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:  # whatever its class makes pickle raise
            got = f"{type(value).__module__}.{type(value).__qualname__}"
            allowed = "a plain number, a text, a tensor, or a list or mapping of them"
            raise PflError(f"checkpoint: {key} must be {allowed}, got {got}") from error


@contextmanager
def refusing(content: Content) -> Iterator[None]:
    """Turn the exception that a wrong entry of a checkpoint raises into one line that names the file."""
    try:
        yield
    except SettingsError as error:
        raise refusal(content, str(error)) from error
    except PflError:
        raise
    except WRONG as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else one_line(error)
        raise refusal(content, reason) from error


def refusal(content: Content, message: str) -> PflError:
    """The error that refuses a checkpoint, with the name of its file if that is known."""
    return PflError(f"ckpt_path: '{content[FILE]}': {message}" if FILE in content else f"checkpoint: {message}")


def shape_of(content: Content) -> dict[str, Any]:
    """What a method was built for: the arguments of its ``build``.

    Raises:
        PflError: If its task is none.
    """
    shape = dict(content["shape"])
    settings = shape.pop("task")
    kind = known_subclass(settings["class_path"], Task)
    if kind is None:
        raise refusal(content, f"shape.task must be a subclass of Task, got {settings['class_path']}")
    task = kind(**settings["init_args"]).sized(shape.pop("outputs"))
    return {**shape, "task": task}


def check_same(content: Content, entry: str, current: Mapping[str, Any]) -> None:
    """Check that a checkpoint was written with the current values, such as the shape of the data.

    Raises:
        PflError: If one of them differs.
    """
    for name, value in current.items():
        saved = content[entry].get(name)
        if saved != value:
            words = ("none" if side is None else side for side in (saved, value))
            raise refusal(content, "{}: {} in the checkpoint, {} now; allowed: the same".format(name, *words))


def check_like(content: Content, key: str, saved: Any, own: Any) -> None:
    """Check that an entry has finite numbers, texts and mappings where what would be saved now has them.

    Args:
        content: The checkpoint.
        key: The key of the entry.
        saved: The entry.
        own: What would be saved now. Keys may be missing, such as those of another version of Lightning.

    Raises:
        PflError: If it has something else.
    """
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        for name in own.keys() & saved.keys():
            check_like(content, f"{key}.{name}", saved[name], own[name])
    elif isinstance(own, int | float):
        if not (isinstance(saved, int | float) and isfinite(saved)):
            raise refusal(content, f"{key} must be a finite number, got {saved!r}")
    elif not isinstance(saved, type(own)):
        raise refusal(content, f"{key} must be of the type {type(own).__name__}, got {saved!r}")


def check_finite(content: Content, constants: Collection[str]) -> None:
    """Check that all real numbers of the method are finite, but for its network's constants, such as masks.

    Raises:
        PflError: If one of them is not; training would diverge at once.
    """
    exempt = {f"network.{name}" for name in constants}
    for name, tensor in content["state_dict"].items():
        if name in exempt:
            continue
        # the two ends of a tensor take no memory
        if tensor.is_floating_point() and tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
            raise refusal(content, f"state_dict.{name} has values that are not finite")


def check_optimizer_state(content: Content, parameters: list[Tensor]) -> None:
    """Check that the server's optimizer keeps of each parameter single numbers, or tensors of its shape.

    Raises:
        PflError: If it does not; torch would go on with what it broadcasts to.
    """
    for optimizer in content.get("optimizer_states", []):
        for place, state in optimizer["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.ndim and value.shape != parameters[place].shape:
                    raise refusal(content, f"optimizer_states.{name} does not have the shape of parameter {place}")
