"""Settings that say how to make an object again, for objects that remember what they were made with."""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from jsonargparse.typing import lazy_instance

from pfl_lightning.errors import PflError

Made = TypeVar("Made")


class Recorded:
    """Remembers the arguments that an object was made with."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make the object; its constructor gets the same arguments."""
        made = super().__new__(cls)
        vars(made)["_arguments"] = args, kwargs
        return made


def recipe(value: Any) -> Any:
    """What settings say of a value: a class and its arguments for an object, plain values as they are.

    Args:
        value: An object, a class, ``functools.partial`` of a class, or any value.

    Returns:
        Settings. What they cannot say, such as an array or a function, stays what it is.

    Raises:
        PflError: If a class cannot be imported.
    """
    if isinstance(value, Recorded):
        return {"class_path": path_of(type(value)), "init_args": recipe(given(value))}
    if isinstance(value, partial) and isinstance(value.func, type) and not value.args:
        return {"class_path": path_of(value.func), "init_args": recipe(value.keywords)}
    if isinstance(value, type):
        return {"class_path": path_of(value)}
    if is_dataclass(value):
        return {field.name: recipe(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: recipe(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [recipe(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def given(made: Recorded) -> dict[str, Any]:
    """The arguments of an object's constructor that were given, by name."""
    args, kwargs = vars(made)["_arguments"]
    signature = inspect.signature(type(made))
    bound = signature.bind(*args, **kwargs).arguments
    others = next((name for name, each in signature.parameters.items() if each.kind is each.VAR_KEYWORD), "")
    return {**{name: value for name, value in bound.items() if name != others}, **bound.get(others, {})}


def path_of(kind: type) -> str:
    """The shortest import path of a class, such as ``torch.optim.SGD``, which is the one that people write.

    Raises:
        PflError: If it was made within a function, so that it cannot be imported.
    """
    if "<locals>" in kind.__qualname__:
        raise PflError(f"{kind.__name__}: classes within functions are not possible; allowed: those of modules")
    packages = list(accumulate(kind.__module__.split("."), "{}.{}".format))
    found = (name for name in packages if vars(sys.modules.get(name, kind)).get(kind.__name__) is kind)
    return f"{next(found, kind.__module__)}.{kind.__qualname__}"


def word_for(made: Any) -> str:
    """What stands in settings for an object that they cannot hold, such as an array; such a word is its own."""
    return made if is_word(made) else f"<{type(made).__name__} of a program>"


def is_word(value: Any) -> bool:
    """Whether a setting stands for such an object."""
    return isinstance(value, str) and value.endswith(" of a program>")


def lazy(kind: type[Made]) -> Made:
    """An object as the default of an argument: made when it is first used, and written in settings as its class.

    It is jsonargparse's ``lazy_instance``. That looks for its caller by ``inspect.stack``, which reads sources for
    every frame of nested imports, and takes a second when torch is loaded; here it is told.
    """
    caller = sys._getframe(1)
    with patch.object(inspect, "stack", return_value=[None, (caller,)]):
        return lazy_instance(kind)
