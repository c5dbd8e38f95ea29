"""Reading of checkpoints: nothing is built from a file that is damaged, or that lacks or distorts an entry."""

import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pfl_lightning.errors import PflError
from pfl_lightning.files import is_intact
from pfl_lightning.methods.sparsity import Sparsity
from pfl_lightning.system import Clock, Ledger

Content = dict[str, Any]
Key = tuple[str | int, ...]  # where an entry is in nested mappings and lists
FILE = "file"  # entry with the path that a checkpoint was read from; it is not in the file
MISSING = object()


class DamagedError(PflError):
    """A checkpoint is truncated, or some of its bytes have changed."""


class Kind(NamedTuple):
    """What an entry may be.

    Attributes:
        words: What an error says is allowed.
        holds: Whether a value is of this kind.
    """

    words: str
    holds: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and 0 <= value < math.inf


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_is_count, value))


def _is_packed(value: Any) -> bool:
    """Whether this may be a tensor without its zeros, as ``server.stored`` makes it."""
    return isinstance(value, tuple) and len(value) == 3 and all(map(_is_tensor, value[:2])) and _is_shape(value[2])


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(inner) for name, inner in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, (str, int, float, type(None)))


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_progress(value: Any) -> bool:
    return _is_named(value) and all(_is_counts(value.get(part)) for part in ("total", "current"))


def _is_counts(value: Any) -> bool:
    return _is_named(value) and all(map(_is_count, value.values())) and {"ready", "completed"} <= value.keys()


def _fields_of(record: type, younger: str = "") -> Kind:
    """The values of a data class, of which older checkpoints may lack one."""
    names = {field.name for field in fields(record)}
    words = f"a mapping with {', '.join(sorted(names))}"
    return Kind(words, lambda value: isinstance(value, Mapping) and names - {younger} <= value.keys() <= names)


COUNT = Kind("a whole number from 0", _is_count)
SIZE = Kind("a whole number from 1", lambda value: _is_count(value) and value > 0)
AMOUNT = Kind("a finite number from 0", _is_amount)
NUMBER = Kind("a number", _is_number)
ANYTHING = Kind("anything", lambda value: True)
TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true, false", lambda value: isinstance(value, bool))
NAMED = Kind("a mapping with names", _is_named)
SETTINGS = Kind("settings of plain values", lambda value: isinstance(value, Mapping) and _is_plain(value))
CLASS = Kind("the path of a class", lambda value: isinstance(value, str) and bool(re.fullmatch(r"[\w.<>]+", value)))
STORED = Kind("a tensor, or a packed one", lambda value: _is_tensor(value) or _is_packed(value))
PROGRESS = Kind("Lightning's progress: total and current counts", _is_progress)

METHOD: dict[Key, Kind] = {
    ("pytorch-lightning_version",): Kind("a version", lambda v: isinstance(v, str) and bool(re.match(r"\d+\.\d+", v))),
    ("method",): CLASS,
    ("global_step",): COUNT,
    ("state_dict",): Kind("tensors with names", lambda value: _is_named(value) and len(value) > 0),
    ("shape", "input_shape"): Kind("whole numbers from 1", lambda value: _is_shape(value) and all(value)),
    ("shape", "num_classes"): SIZE,
    ("shape", "num_clients"): SIZE,
    ("hyper_parameters",): NAMED,
    ("clock",): _fields_of(Clock, younger="ready"),
    ("clock", "rounds"): COUNT,
    ("clock", "compute"): AMOUNT,
    ("clock", "total"): AMOUNT,
    ("engine", "limit"): Kind("null, or a whole number from 1", lambda value: value is None or SIZE.holds(value)),
}
YOUNGER: dict[Key, Kind] = {  # older checkpoints have none
    ("shape", "test_only"): FLAG,
    ("clock", "ready"): Kind(
        "seconds by client",
        lambda v: isinstance(v, Mapping) and all(map(_is_count, v)) and all(map(_is_amount, v.values())),
    ),
    ("ledger",): _fields_of(Ledger),
    ("ledger", "up"): COUNT,
    ("ledger", "down"): COUNT,
    ("ledger", "total"): COUNT,
    ("ledger", "paper"): AMOUNT,
    ("sums",): Kind("two whole numbers from 0", lambda value: _is_shape(value) and len(value) == 2),
    ("monitor",): TEXT,
    ("tables",): Kind(
        "rounds, or null, by table",
        lambda v: _is_named(v) and all(rounds is None or _is_count(rounds) for rounds in v.values()),
    ),
    ("trained",): Kind("numbers by name", lambda v: _is_named(v) and all(type(x) is float for x in v.values())),
    ("callbacks", "EvaluateStartAndEnd", "extra"): FLAG,
    ("sparsity",): _fields_of(Sparsity),
}
FIT_LOOP, STEPS = ("loops", "fit_loop"), "epoch_loop.manual_optimization.optim_step"
TRAINING: dict[Key, Kind] = {
    **{
        (*FIT_LOOP, f"{loop}_progress"): PROGRESS
        for loop in ("epoch", "epoch_loop.batch", "epoch_loop.val_loop.batch", STEPS)
    },
    ("callbacks",): Kind("states by callback", lambda value: _is_named(value) and all(map(_is_named, value.values()))),
    ("optimizer_states",): Kind("a list of one state", lambda value: isinstance(value, list) and len(value) == 1),
    ("optimizer_states", 0, "state"): Kind(
        "states by parameter",
        lambda value: isinstance(value, Mapping) and all(map(_is_named, value.values())) and all(map(_is_count, value)),
    ),
    ("optimizer_states", 0, "param_groups", 0, "params"): Kind("places of parameters", _is_shape),
    ("lr_schedulers",): Kind("an empty list", lambda value: value == []),
}
ROUNDS: list[Key] = [  # all of them count the same
    ("clock", "rounds"),
    (*FIT_LOOP, "state_dict", "combined_loader", 0, "done"),
    (*FIT_LOOP, f"{STEPS}_progress", "total", "completed"),
]
RUN: dict[Key, Kind] = {
    ("fingerprint",): TEXT,
    ("config",): SETTINGS,
    ("config", "trainer"): NAMED,
    **{("config", part, "class_path"): CLASS for part in ("model", "data")},
    **{("config", part, "init_args"): NAMED for part in ("model", "data")},
}


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
        _check(content, {("callbacks", name, entry): NUMBER if _is_number(value) else ANYTHING})


def check_tensors(content: Content, expected: Mapping[str, Tensor]) -> None:
    """Check that the tensors of a checkpoint, unpacked, have the names, shapes and types of these.

    Raises:
        PflError: If one is missing, wrong, or too many.
    """
    found = content["state_dict"]
    for name in sorted(expected.keys() | found.keys()):
        if name not in found or name not in expected:
            problem = "is missing" if name not in found else "is one too many"
            raise refusal(content, f"state_dict.{name} {problem} for this method, network and data")
        was, now = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (found[name], expected[name]))
        if was != now:
            raise refusal(content, f"state_dict.{name}: {was} is not possible; allowed: {now}")


def check_optimizer(content: Content, parameters: Sequence[Tensor]) -> None:
    """Check that what the server's optimizer keeps of each parameter has the shape of that, or is a single number.

    Raises:
        PflError: If something has not.
    """
    for place, state in content["optimizer_states"][0]["state"].items():
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
        if (rounds := _at(content, key)) != content["global_step"]:
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
