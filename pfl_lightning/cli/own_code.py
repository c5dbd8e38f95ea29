"""What is wrong in a file of the user's own, and with the name of a class in one."""

import inspect
import re
import sysconfig
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim import Optimizer

from pfl_lightning.data import FederatedDataModule, Partition
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.methods import Method
from pfl_lightning.strict import imported
from pfl_lightning.system import Speeds

MORE = "(PFL_DEBUG=1 shows the traceback)"
_FOREIGN = [Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))]
_INSTALLED = {"site-packages", "dist-packages"}
_ROLES: dict[type, tuple[str, str]] = {  # what a class is for, and the option that takes it; the first one that fits
    Method: ("a method", "model"),
    FederatedDataModule: ("a data set", "data"),
    Partition: ("a partition", "data.partition"),
    Speeds: ("a class of speeds", "data.speeds"),
    pl.Callback: ("a callback", "trainer.callbacks"),
    Logger: ("a logger", "trainer.logger"),
    Optimizer: ("an optimizer", "model.server_optimizer"),
    nn.Module: ("a network", "model.network"),
}


def blame(error: BaseException | None) -> str:
    """Where a file of the user's own has raised an error, or what it was caused by, or called what has.

    Returns:
        File, line and error, such as ``my_method.py, line 12, in local: KeyError: 'x'``; empty if no such file did.
    """
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename):
            return f"{_shown(error.filename)}, line {error.lineno}: {_words(error)}"
        frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        if own := [(code, line) for code, line in frames if _is_own(code.co_filename)]:
            code, line = own[-1]
            where = "" if code.co_name == "<module>" else f", in {code.co_name}"
            return f"{_shown(code.co_filename)}, line {line}{where}: {_words(error)}"
        error = error.__cause__ or error.__context__
    return ""


def check_import(path: str) -> None:
    """Import the module of a class.

    Raises:
        PflError: From what the module raises; not if there is no such module.
    """
    module = path.rpartition(".")[0]
    try:
        if all(part.isidentifier() for part in module.split(".")):
            import_module(module)
    except Exception as error:  # whatever a file may raise
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            return
        raise PflError(f"{blame(error) or f'{path} cannot be imported: {_words(error)}'} {MORE}") from error


def wrong_class(path: str, key: str) -> str:
    """Why an option cannot have a class that its user has named.

    Args:
        path: What was given.
        key: The option.

    Returns:
        What is found by that name, or how to write it; empty if there is no telling, or nothing is wrong.
    """
    found = imported(path) if "." in path else None
    if found is None:
        return _misspelt(path, key)
    wanted = next((base for base, (_, option) in _ROLES.items() if option == key), None)
    if wanted and isinstance(found, type) and issubclass(found, wanted):
        return ""
    kind, option = _kind(found)
    instead, hint = f", not {_ROLES[wanted][0]}" if wanted else "", f" (--{option} {path})" if option else ""
    return f"{path} is not possible: it is {kind}{instead}{hint}"


def _misspelt(path: str, key: str) -> str:
    """How to write a class that is given by a file, by its name alone, or with a wrong name or folder."""
    if match := re.fullmatch(r"(?P<file>.*\.py|.*/\w+)(?:[.:]+(?P<name>\w*))?", path):
        return _by_import_path(path, Path(f"{match['file'].removesuffix('.py')}.py"), match["name"] or "", key)
    folder, _, name = path.rpartition(".")
    if not folder:
        if (file := Path(f"{path}.py")).is_file() and _written(file):
            return _by_import_path(path, file, "", key)
        homes = (file.stem for file in sorted(Path().glob("*.py")) if path in _written(file))
        return next((f"no such class: {path}; did you mean {home}.{path}?" for home in homes), "")
    if isinstance(module := imported(folder), ModuleType):
        return f"no such class: {path}; {folder} has {', '.join(_classes(module, key)) or 'none of that name'}"
    others = sorted(Path().glob(f"*/{folder.rpartition('.')[2]}.py"))
    if others:
        return _by_import_path(path, others[0], name, key)
    return f"no such class: {path}; there is no module {folder}, here or installed"


def _by_import_path(given: str, file: Path, name: str, key: str) -> str:
    """How to write a class of a file, which is not imported: it may be any program."""
    if not file.is_file():
        return f"{given} is not possible: there is no file '{file}'"
    names, place = [name] if name else _written(file), Path(_shown(str(file)))
    within = place.with_suffix("").parts
    is_below = not place.is_absolute() and all(part.isidentifier() for part in within)
    start = "" if is_below else f"PYTHONPATH='{place.parent}' pfl ... "
    module = ".".join(within) if is_below else file.stem
    only, classes = (names[0], "") if len(names) == 1 else ("CLASS", f"; it has {', '.join(names) or 'no class'}")
    return f"{given} is not possible: write {start}--{key} {module}.{only}{classes}"


def _written(file: Path) -> list[str]:
    """Names of the classes of a file that is not imported."""
    return re.findall(r"^class (\w+)", file.read_text(errors="replace"), re.MULTILINE)


def _classes(module: ModuleType, key: str) -> list[str]:
    """The classes that a module defines; those for an option alone, if there are any."""
    found = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    return [kind.__name__ for kind in found if _kind(kind)[1] == key] or [kind.__name__ for kind in found]


def _kind(found: Any) -> tuple[str, str]:
    """What an object is, and the option that takes it, if there is one."""
    if isinstance(found, type):
        return next((role for base, role in _ROLES.items() if issubclass(found, base)), ("a class of another kind", ""))
    if isinstance(found, ModuleType):
        return "a module", ""
    return ("a function" if inspect.isroutine(found) else f"an object of class {type(found).__name__}"), ""


def _is_own(file: str) -> bool:
    """Whether a file is neither ours nor one of Python or an installed package."""
    path = Path(file)
    return path.is_file() and not (_INSTALLED & {*path.parts} or any(path.is_relative_to(each) for each in _FOREIGN))


def _shown(file: str) -> str:
    """A file by its path from the working folder, if it is there."""
    path = Path(file).resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _words(error: BaseException) -> str:
    """An error as a line has it."""
    if isinstance(error, SyntaxError):
        return "invalid syntax" if error.msg == "invalid syntax" else f"invalid syntax: {error.msg}"
    said = one_line(error)
    kind = type(error).__name__
    return said if isinstance(error, ImportError) or said == kind else f"{kind}: {said}"
