"""The entries of checkpoints and what they may be."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from math import prod
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from pfl_lightning.federation.sparsity import Sparsity
from pfl_lightning.models import InputKind
from pfl_lightning.system import Clock, Ledger

Key = tuple[str | int, ...]  # where an entry is in nested mappings and lists


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
    return isinstance(value, Tensor)


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_is_count, value))


def _is_packed(value: Any) -> bool:
    """Whether this may be a tensor without its zeros, as ``server.stored`` makes it."""
    if not (isinstance(value, tuple) and len(value) == 3 and all(map(_is_tensor, value[:2])) and _is_shape(value[2])):
        return False
    bitmap, values, shape = value
    return bitmap.dtype == torch.uint8 and 8 * len(bitmap) - prod(shape) in range(8) and values.ndim == 1


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(inner) for name, inner in value.items())
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, (str, int, float, type(None)))


def _is_callbacks(value: Any) -> bool:
    several = value if isinstance(value, list) else [value] if value else []
    return all(isinstance(one, Mapping) and isinstance(one.get("class_path"), str) for one in several)


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_given(value: Any) -> bool:
    return _is_named(value) and all(isinstance(path, str | None) for path in value.values())


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
    ("pytorch-lightning_version",): Kind(
        "a version from 2.0 on", lambda v: isinstance(v, str) and bool(re.match(r"([2-9]|\d\d+)\.\d+", v))
    ),
    ("method",): CLASS,
    ("global_step",): COUNT,
    ("state_dict",): Kind("tensors with names", lambda value: _is_named(value) and len(value) > 0),
    ("shape", "input_shape"): Kind("whole numbers from 1", lambda value: _is_shape(value) and all(value)),
    ("shape", "num_classes"): SIZE,
    ("shape", "num_clients"): SIZE,
    ("shape", "input_kind"): Kind(", ".join(get_args(InputKind)), lambda value: value in get_args(InputKind)),
    ("hyper_parameters",): NAMED,
    ("given",): Kind("import paths, or null, by option", _is_given),
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
    ("ledger",): _fields_of(Ledger, younger="samples"),
    ("ledger", "up"): COUNT,
    ("ledger", "down"): COUNT,
    ("ledger", "total"): COUNT,
    ("ledger", "paper"): AMOUNT,
    ("ledger", "samples"): COUNT,
    ("aggregator",): Kind("two whole numbers from 0", lambda value: _is_shape(value) and len(value) == 2),
    ("monitor",): TEXT,
    ("tables",): Kind(
        "rounds, or null, by table",
        lambda v: _is_named(v) and all(rounds is None or _is_count(rounds) for rounds in v.values()),
    ),
    ("trained",): Kind("numbers by name", lambda v: _is_named(v) and all(type(x) is float for x in v.values())),
    ("callbacks", "EvaluateStartAndEnd", "extra"): FLAG,
    ("sparsity",): _fields_of(Sparsity),
}
CHANGED_ROWS: dict[Key, Kind] = {  # only where a checkpoint has the rows of some clients
    ("clients", "ids"): Kind("ids of clients", lambda v: _is_tensor(v) and v.dtype == torch.int64 and v.ndim == 1),
    ("clients", "start"): Kind("tensors with names", lambda v: _is_named(v) and all(map(_is_tensor, v.values()))),
}
OPTIMIZER = ("optimizer_states", 0)
FIT_LOOP, STEPS = ("loops", "fit_loop"), "epoch_loop.manual_optimization.optim_step"
TRAINING: dict[Key, Kind] = {
    **{
        (*FIT_LOOP, f"{loop}_progress"): PROGRESS
        for loop in ("epoch", "epoch_loop.batch", "epoch_loop.val_loop.batch", STEPS)
    },
    (*FIT_LOOP, "epoch_loop.batch_progress", "is_last_batch"): FLAG,
    (*FIT_LOOP, "epoch_loop.state_dict", "_batches_that_stepped"): COUNT,
    ("callbacks",): Kind("states by callback", lambda value: _is_named(value) and all(map(_is_named, value.values()))),
    ("optimizer_states",): Kind("a list of one state", lambda value: isinstance(value, list) and len(value) == 1),
    (*OPTIMIZER, "state"): Kind(
        "states by parameter",
        lambda value: isinstance(value, Mapping) and all(map(_is_named, value.values())) and all(map(_is_count, value)),
    ),
    (*OPTIMIZER, "param_groups", 0, "params"): Kind("places of parameters", _is_shape),
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
    ("config", "checkpoint"): NAMED,
    ("config", "trainer"): NAMED,
    ("config", "trainer", "callbacks"): Kind("null, a callback or a list of callbacks", _is_callbacks),
    **{("config", part, "class_path"): CLASS for part in ("model", "data")},
    **{("config", part, "init_args"): NAMED for part in ("model", "data")},
}
