"""Import paths, what is behind them, and which of it settings may name."""

import sysconfig
from functools import partial
from inspect import getfile
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_type_hints

_INSTALLED = {"site-packages", "dist-packages"}
_LIBRARIES = [Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))]


class AnyModule(type):
    """The type of a class that stands for every ``nn.Module``; help lists those of its attribute ``offered`` alone."""

    offered: tuple[type, ...]

    def __subclasscheck__(cls, kind: type) -> bool:
        from torch import nn

        return issubclass(kind, nn.Module)

    def __subclasses__(cls) -> list[type]:
        return [*cls.offered]


def import_object(path: str) -> Any:
    """The object at an import path; None if there is none."""
    try:
        return resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return None


def import_path(value: Any) -> str | None:
    """The import path of a function, a class or a factory of its objects, or of the class of an object; or None."""
    if value is None:
        return None
    target = unwrap_partial(value)
    return f"{target.__module__}.{getattr(target, '__qualname__', type(target).__qualname__)}"


def unwrap_partial(factory: Any) -> Any:
    """The class or function that a ``partial``, or a factory that the parser has made, calls; else the value itself."""
    while isinstance(factory, partial):
        factory = next((argument for argument in reversed(factory.args) if isinstance(argument, type)), factory.func)
    return factory


def is_user_file(file: Path) -> bool:
    """Whether a file belongs to the user: not to this package, to Python or to an installed package."""
    return file.is_file() and not (_INSTALLED & {*file.parts} or any(map(file.is_relative_to, _LIBRARIES)))


def makes_network(function: Any) -> bool:
    """Whether a function says that it returns a torch module, and is torchvision's or in a file of the user's.

    Functions of other libraries may do anything with their arguments: one of ``torch.fx`` runs them as code.
    """
    from torch import nn

    try:
        returns_module = not isinstance(function, type) and issubclass(get_type_hints(function)["return"], nn.Module)
        return returns_module and (is_torchvision(function) or is_user_file(Path(getfile(function))))
    except Exception:  # whatever its annotations raise, or what has none
        return False


def is_torchvision(function: Any) -> bool:
    """Whether a function makes one of torchvision's networks."""
    return str(function.__module__).startswith("torchvision.models.")
