"""Objects, their import paths, and the settings that give them: classes and constructor arguments; needs no parser.

A method or a data set remembers its ``init_args``; any other object has each of them as an attribute of the same name,
as in scikit-learn.
"""

import inspect
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.util import find_spec
from inspect import Parameter, getfile, signature
from itertools import accumulate
from pathlib import Path
from pkgutil import resolve_name
from types import FrameType
from typing import Any, TypeVar, cast, get_type_hints

Object = TypeVar("Object")
FROM_PYTHON = "from Python: "  # before the class of an object that settings cannot express, such as an array
_PACKAGE = __name__.partition(".")[0]
_INSTALLED = {"site-packages", "dist-packages"}
_LIBRARIES = [Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))]


def to_settings(value: Any) -> Any:
    """The settings that give a value: a class and its arguments for an object, plain values as they are.

    Args:
        value: An object, a class, ``functools.partial`` of a class, or any value.

    Returns:
        Plain values, lists and mappings; a text that begins with ``FROM_PYTHON`` for what they cannot express.
    """
    if getattr(value, "ndim", None) == 0:  # of NumPy or torch
        value = value.item()
    for plain_type in (bool, int, float, str):  # an option's own type, such as a positive number, becomes one of these
        if isinstance(value, plain_type):
            return plain_type(value)
    if value is None or isinstance(value, Path):
        return value and str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_settings(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_settings(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        items = [to_settings(item) for item in value]
        return f"{FROM_PYTHON}{type(value).__name__}" if list(unserializable_keys(items)) else items
    if isinstance(value, type):
        return _class_settings(value, {})
    if isinstance(value, partial) and isinstance(value.func, type) and not value.args:
        return _class_settings(value.func, value.keywords)
    return _class_settings(type(value), changed_arguments(value))


def _class_settings(kind: type, arguments: dict[str, Any] | None) -> Any:
    """The settings of an object of a class."""
    if arguments is None or "<locals>" in kind.__qualname__:
        return f"{FROM_PYTHON}{kind.__name__}"
    return {"class_path": public_path(kind), "init_args": to_settings(arguments)}


def unserializable_keys(settings: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Keys in settings, as paths from the top, of objects that settings cannot express."""
    if isinstance(settings, Mapping):
        for name, inner in settings.items():
            yield from unserializable_keys(inner, *path, name)
    elif isinstance(settings, list):
        yield from (path for inner in settings for _ in unserializable_keys(inner))
    elif isinstance(settings, str) and settings.startswith(FROM_PYTHON):
        yield path


def changed_arguments(instance: Any) -> dict[str, Any] | None:
    """The constructor arguments of an object that differ from their defaults; None if it does not keep them."""
    arguments = getattr(instance, "init_args", None)
    if not isinstance(arguments, dict):
        arguments = _arguments_in_attributes(instance)
    if arguments is None:
        return None
    defaults = default_arguments(type(instance))
    return {name: value for name, value in arguments.items() if not _is_default(value, defaults.get(name, instance))}


def _arguments_in_attributes(instance: Any) -> dict[str, Any] | None:
    """The constructor arguments that an object has as attributes of the same names; None if it lacks one."""
    try:
        parameters = signature(type(instance)).parameters
    except (TypeError, ValueError):  # of a class in C
        return None
    kinds = {parameter.kind for parameter in parameters.values()}
    passes_on = kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    if passes_on or not all(hasattr(instance, name) for name in parameters):
        return None
    return {name: getattr(instance, name) for name in parameters}


def _is_default(value: Any, default: Any) -> bool:
    """Whether a value is its default; a plain one may be another object that settings write in the same way."""
    is_plain = isinstance(value, bool | int | float | str)
    return value is default or (is_plain and repr(to_settings(value)) == repr(default))


def clone(instance: Object, **changes: Any) -> Object:
    """An object like another one before its first use, with some other arguments.

    One that does not keep its arguments is used as it is, and so are arrays and functions.
    """
    arguments = changed_arguments(instance)
    if arguments is None:
        return instance
    return type(instance)(**{**{name: clone(value) for name, value in arguments.items()}, **changes})


def default_arguments(kind: type) -> dict[str, Any]:
    """The defaults of a class's arguments, with those that it passes on to its bases."""
    constructors = [vars(base)["__init__"] for base in reversed(kind.__mro__) if "__init__" in vars(base)]
    parameters = [parameter for init in constructors for parameter in signature(init).parameters.values()]
    return {parameter.name: parameter.default for parameter in parameters}


def constructor_arguments(kind: type) -> dict[str, Any]:
    """The arguments of the running constructor of an object of a class or a subclass, as they are.

    To be called in the constructor of the class. A constructor's arguments are those that a caller gives: not those
    that it passes on to its bases itself.
    """
    from lightning.pytorch.utilities.parsing import collect_init_args

    frame = cast(FrameType, cast(FrameType, inspect.currentframe()).f_back)
    return dict(collect_init_args(frame, [], classes=(kind,))[-1])


def public_path(kind: type) -> str:
    """The shortest import path of a class, such as ``torch.optim.SGD``, which is the one that people write."""
    packages = accumulate(kind.__module__.split("."), "{}.{}".format)
    matches = (name for name in packages if vars(sys.modules.get(name, kind)).get(kind.__name__) is kind)
    return f"{next(matches, kind.__module__)}.{kind.__qualname__}"


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


def known_subclass(path: str, base: type) -> Any:
    """The subclass of a base at an import path that a stranger's file names; None if there is none.

    To find it, no module is run but those of this package and of the user's own files: a class of a library is found
    once the program has imported it.
    """
    module, _, name = path.rpartition(".")
    value = getattr(sys.modules.get(module), name, None)
    if value is None and _is_own(module.partition(".")[0]):
        value = import_object(path)
    return value if isinstance(value, type) and issubclass(value, base) else None


def _is_own(package: str) -> bool:
    """Whether a package or module is this one or the user's; it is not imported to find out."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # of a name that is none, or of the main program
        return False
    if spec is None:
        return False
    places = [spec.origin] if spec.has_location else spec.submodule_search_locations
    return package == _PACKAGE or any(place and is_users_file(Path(place)) for place in places or ())


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
    return file.is_file() and is_users_file(file)


def is_users_file(place: Path) -> bool:
    """Whether a file is the user's own: neither this package's nor an installed one."""
    return not (_INSTALLED & {*place.parts} or any(map(place.is_relative_to, _LIBRARIES)))


def users_modules(settings: Any) -> Iterator[tuple[str, Path]]:
    """The imported modules of the user's own that import paths in settings name, and their files."""
    if isinstance(settings, Mapping | list):
        for inner in settings.values() if isinstance(settings, Mapping) else settings:
            yield from users_modules(inner)
    elif isinstance(settings, str):
        module = settings.rpartition(".")[0]
        file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
        if is_user_file(file):
            yield module, file


def is_ours_or_torchs(kind: type) -> bool:
    """Whether a class is a torch module or optimizer, or inherits from a class of this package."""
    from torch import nn
    from torch.optim import Optimizer

    is_ours = any(base.__module__.partition(".")[0] == _PACKAGE for base in kind.__mro__)
    return is_ours or issubclass(kind, nn.Module | Optimizer)


def is_users(kind: type) -> bool:
    """Whether a class is in a file of the user's."""
    try:
        return is_user_file(Path(getfile(kind)))
    except (OSError, TypeError):  # of a class that no file has, such as one in C or in a notebook
        return kind.__module__ == "__main__"


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
