"""The classes that settings can name: the package's, and those of the working folder.

Names and docstrings are read from the source: an import would run a stranger's file, and take seconds for the package.
"""

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parent.parent


class Kind(NamedTuple):
    """A kind of class: the subpackage with its classes, their base there, and the option that takes one.

    The base itself may be one to choose.
    """

    room: str
    base: str
    option: str
    with_base: bool = False

    @property
    def option_name(self) -> str:
        """The last part of the option, such as ``network``."""
        return self.option.rpartition(".")[2].strip("-+")


KINDS = {
    "methods": Kind("methods", "Method", "--model"),
    "data": Kind("data", "FederatedDataModule", "--data"),
    "tasks": Kind("tasks", "Task", "--model.task"),
    "networks": Kind("models", "Network", "--model.network"),
    "partitions": Kind("data", "Partition", "--data.partition"),
    "sizes": Kind("data", "Sizes", "--data.partition.sizes"),
    "skews": Kind("data", "Skew", "--data.skew"),
    "poisons": Kind("data", "Poison", "--data.poison"),
    "participations": Kind("system", "Participation", "--data.participation", with_base=True),
    "staleness": Kind("system", "Staleness", "--data.participation.staleness"),
    "speeds": Kind("system", "Speeds", "--data.speeds"),
    "topologies": Kind("server", "Topology", "--model.topology"),
    "uplink": Kind("uplink", "Step", "--model.uplink+"),
    "aggregators": Kind("server", "Aggregator", "--model.aggregator", with_base=True),
    "callbacks": Kind("callbacks", "Callback", "--trainer.callbacks+"),
}
OTHER_BASES = {"Network": {"Module"}}  # that a user's own class may have instead
IN_EVERY_RUN = {  # callbacks that no setting has to name
    *("EvaluateStartAndEnd", "EvaluationTable", "MetricsTable", "PercentileErrors"),
    *("RoundCheckpoint", "RoundProgressBar", "RunFigures", "RunSummary"),
}
Classes = dict[str, ast.ClassDef]


class Choice(NamedTuple):
    """A class: its name as settings take it, the first line of its docstring, and the file if it is the user's."""

    name: str
    line: str
    file: str = ""


def package_classes(kind: Kind) -> list[Choice]:
    """The classes of a kind that the package offers, by name."""
    classes = _classes((PACKAGE / kind.room).rglob("*.py"))
    exported = _exported(PACKAGE / kind.room / "__init__.py") - IN_EVERY_RUN
    names = [name for name in exported & classes.keys() if _is_kind(classes[name], kind, classes)]
    if kind.with_base:
        names.append(kind.base)
    return [Choice(name, _first_line(classes[name])) for name in sorted(names, key=str.casefold)]


def user_classes(kind: Kind, folder: Path) -> Iterator[Choice]:
    """The classes of a kind in the files of a folder that a setting can name, such as ``my_method.MyMethod``."""
    files = {path: _classes([path]) for path in sorted(folder.glob("*.py")) if path.stem.isidentifier()}
    bases = _classes((PACKAGE / kind.room).rglob("*.py"))
    for classes in files.values():
        bases = classes | bases
    for path, classes in files.items():
        for name, node in classes.items():
            if not name.startswith("_") and _is_kind(node, kind, bases):
                yield Choice(f"{path.stem}.{name}", _first_line(node), path.name)


def user_classes_named(word: str, option: str) -> list[str]:
    """The classes in the working folder that a wrong word for an option may mean: it names the file, or the class."""
    kinds = [kind for kind in KINDS.values() if kind.option_name == option]
    words = {*word.removesuffix(".py").split(".")}
    return [choice.name for kind in kinds for choice in user_classes(kind, Path()) if words & {*choice.name.split(".")}]


@cache
def choices() -> dict[str, dict[str, Any]]:
    """The package's classes of each kind by name; the kinds by the last part of their option, such as ``network``."""
    rooms = {kind.room: import_module(f"pfl_lightning.{kind.room}") for kind in KINDS.values()}
    return {
        kind.option_name: {choice.name: getattr(rooms[kind.room], choice.name) for choice in package_classes(kind)}
        for kind in KINDS.values()
    }


@cache
def options_of(kind: Any) -> list[str]:
    """The arguments that a class takes, with those that it passes on to its bases."""
    from jsonargparse import ArgumentParser

    names: list[str] = ArgumentParser().add_class_arguments(kind, fail_untyped=False)
    return names


def _classes(paths: Iterable[Path]) -> Classes:
    """The classes of files, by name; a file that cannot be read, or is not Python, has none."""
    classes: Classes = {}
    for path in paths:
        with suppress(OSError, SyntaxError, ValueError):
            body = ast.parse(path.read_bytes()).body
            classes |= {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    return classes


def _is_kind(node: ast.ClassDef, kind: Kind, classes: Classes) -> bool:
    """Whether a class inherits from the base of a kind, and leaves no function to its subclasses."""
    functions = [member for member in node.body if isinstance(member, ast.FunctionDef)]
    is_abstract = any("abstractmethod" in map(_last, function.decorator_list) for function in functions)
    return not is_abstract and bool({kind.base, *OTHER_BASES.get(kind.base, ())} & {*_bases(node, classes)})


def _bases(node: ast.ClassDef, classes: Classes) -> list[str]:
    """The names of all bases of a class."""
    names: list[str] = []
    queue = [_last(base) for base in node.bases]
    while queue:
        name = queue.pop()
        if name not in names:
            names.append(name)
            queue += [_last(base) for base in classes[name].bases] if name in classes else []
    return names


def _last(node: ast.AST) -> str:
    """The last part of a name such as ``pl.Callback``."""
    return ast.unparse(node).rpartition(".")[2]


def _first_line(node: ast.ClassDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def _exported(path: Path) -> set[str]:
    """What ``__all__`` of a package lists."""
    assigned = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.Assign)]
    return {name for node in assigned if _last(node.targets[0]) == "__all__" for name in ast.literal_eval(node.value)}
