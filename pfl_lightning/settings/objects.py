"""What settings say of objects: their classes, and the arguments that they were made with.

A method or a data set remembers its ``init_args``; any other object has each of them as an attribute of the same name,
as in scikit-learn.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import Parameter, signature
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from pfl_lightning.settings.parser import options_of

Made = TypeVar("Made")
FROM_PYTHON = "from Python: "  # before the class of an object that settings cannot say, such as an array


def recipe(value: Any) -> Any:
    """What settings say of a value: a class and its arguments for an object, plain values as they are.

    Args:
        value: An object, a class, ``functools.partial`` of a class, or any value.

    Returns:
        Plain values, lists and mappings; a line for each object that they cannot say; see ``unsaid``.
    """
    if isinstance(value, np.generic | np.ndarray | Tensor) and not value.ndim:
        value = value.item()
    for plain in (bool, int, float, str):  # an option's own type, such as a positive number, becomes one of these
        if isinstance(value, plain):
            return plain(value)
    if value is None or isinstance(value, Path):
        return value and str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: recipe(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: recipe(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple) and not list(unsaid(said := [recipe(inner) for inner in value])):
        return said
    kind: type = type(value)
    given: dict[str, Any] | None
    if isinstance(value, type):
        kind, given = value, {}
    elif isinstance(value, partial) and isinstance(value.func, type) and not value.args:
        kind, given = value.func, value.keywords
    else:
        given = arguments(value)
    if given is None or "<locals>" in kind.__qualname__:
        return f"{FROM_PYTHON}{kind.__name__}"
    return {"class_path": path_of(kind), "init_args": recipe(given)}


def unsaid(settings: Any, *place: str) -> Iterator[tuple[str, ...]]:
    """Places in settings of objects that they cannot say."""
    if isinstance(settings, Mapping):
        for name, inner in settings.items():
            yield from unsaid(inner, *place, name)
    elif isinstance(settings, list):
        yield from (place for inner in settings for _ in unsaid(inner))
    elif isinstance(settings, str) and settings.startswith(FROM_PYTHON):
        yield place


def arguments(made: Any) -> dict[str, Any] | None:
    """The arguments that an object was made with, but for defaults; None if it does not keep them."""
    kind: type = type(made)
    known = getattr(made, "init_args", None)
    if isinstance(known, dict):
        names = options_of(kind)
    else:
        try:
            parameters = signature(kind).parameters.values()
        except (TypeError, ValueError):  # of a class in C
            return None
        names = [each.name for each in parameters]
        if any(each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for each in parameters):
            return None
        if not all(hasattr(made, name) for name in names):
            return None
        known = {name: getattr(made, name) for name in names}
    defaults = default_arguments(kind)
    return {name: known[name] for name in names if name in known and not _alike(known[name], defaults.get(name, made))}


def _alike(value: Any, default: Any) -> bool:
    """Whether a value is its default; a plain one may be another object that settings write in the same way."""
    return value is default or (isinstance(value, bool | int | float | str) and repr(recipe(value)) == repr(default))


def anew(made: Made, **changes: Any) -> Made:
    """An object like another one before its first use, with some other arguments.

    One that does not keep its arguments is used as it is, and so are arrays and functions.
    """
    given = arguments(made)
    if given is None:
        return made
    return type(made)(**{**{name: anew(value) for name, value in given.items()}, **changes})


def usual_recipe(kind: type) -> dict[str, Any]:
    """What settings say of an object that is made without arguments: the class, and all defaults."""
    defaults = default_arguments(kind)
    return {"class_path": path_of(kind), "init_args": {name: recipe(defaults[name]) for name in options_of(kind)}}


def default_arguments(kind: type) -> dict[str, Any]:
    """The defaults of a class's arguments, with those that it passes on to its bases."""
    makers = [vars(base)["__init__"] for base in reversed(kind.__mro__) if "__init__" in vars(base)]
    parameters = [each for maker in makers for each in signature(maker).parameters.values()]
    return {each.name: each.default for each in parameters}


def path_of(kind: type) -> str:
    """The shortest import path of a class, such as ``torch.optim.SGD``, which is the one that people write."""
    packages = list(accumulate(kind.__module__.split("."), "{}.{}".format))
    found = (name for name in packages if vars(sys.modules.get(name, kind)).get(kind.__name__) is kind)
    return f"{next(found, kind.__module__)}.{kind.__qualname__}"
