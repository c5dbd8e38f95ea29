"""The classes that settings can name, read from their source: the package's, and those of the working folder.

Nothing is imported: that would run a stranger's file, and take seconds for the package.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]


class Kind(NamedTuple):
    """A kind of class: the room of the package where it lives, what it subclasses, and the option that takes it."""

    room: str
    bases: tuple[str, ...]
    option: str
    leaves_out: tuple[str, ...] = ()
    """Classes that no setting has to name, since every run has them."""


KINDS = {
    "methods": Kind("methods", ("Method",), "--model"),
    "data": Kind("data", ("FederatedDataModule",), "--data"),
    "networks": Kind("models", ("Network", "Module"), "--model.network"),
    "partitions": Kind("data", ("Partition",), "--data.partition"),
    "sizes": Kind("data", ("Sizes",), "--data.partition.sizes"),
    "speeds": Kind("system", ("Speeds",), "--data.speeds"),
    "topologies": Kind("server", ("Topology",), "--model.topology"),
    "aggregator": Kind("server", ("Aggregator",), "--model.aggregator"),
    "callbacks": Kind(
        "callbacks",
        ("Callback", "Checkpoint", "ProgressBar"),
        "--trainer.callbacks+",
        leaves_out=(
            "EvaluateStartAndEnd",
            "EvaluationTable",
            "MetricsTable",
            "PercentileErrors",
            "RoundCheckpoint",
            "RoundProgressBar",
            "RunFigures",
            "RunSummary",
        ),
    ),
}


class Found(NamedTuple):
    """A class: its name as settings take it, the first line of its docstring, and the file if it is not ours."""

    name: str
    line: str
    file: str = ""


class Source(NamedTuple):
    """What the source of a class says."""

    line: str
    bases: tuple[str, ...]
    defined: frozenset[str]
    abstract: frozenset[str]


def ours(kind: Kind) -> list[Found]:
    """The classes of a kind that the package offers, by name."""
    sources = _sources((PACKAGE / kind.room).rglob("*.py"))
    offered = _offered(PACKAGE / kind.room / "__init__.py") - {*kind.bases, *kind.leaves_out}
    names = sorted(offered & _of_kind(sources, {*kind.bases}), key=str.casefold)
    return [Found(name, sources[name].line) for name in names if not _is_abstract(name, sources)]


def theirs(kind: Kind, folder: Path) -> list[Found]:
    """The classes of a kind in the files of a folder, by file.

    Args:
        kind: The kind.
        folder: The folder; only files that a setting can name, ``my_method.MyMethod``, are read.
    """
    package = _sources((PACKAGE / kind.room).rglob("*.py"))
    files = {path: _sources([path]) for path in sorted(folder.glob("*.py")) if path.stem.isidentifier()}
    sources = {name: source for inside in files.values() for name, source in inside.items()}
    names = _of_kind(sources, {*kind.bases} | _of_kind(package, {*kind.bases}))
    return [
        Found(f"{path.stem}.{name}", source.line, path.name)
        for path, inside in files.items()
        for name, source in inside.items()
        if name in names and not name.startswith("_") and not _is_abstract(name, package | sources)
    ]


def unreadable(folder: Path) -> Iterator[str]:
    """A line for each file of a folder that is no Python."""
    for path in sorted(folder.glob("*.py")):
        try:
            ast.parse(path.read_bytes())
        except (SyntaxError, ValueError) as error:
            yield f"{path.name}: not read ({error.args[0]}, line {getattr(error, 'lineno', None) or 1})"


def _sources(paths: Iterable[Path]) -> dict[str, Source]:
    """The classes of some files, by name."""
    found: dict[str, Source] = {}
    for path in paths:
        try:
            body = ast.parse(path.read_bytes()).body
        except (SyntaxError, ValueError):
            continue
        found |= {node.name: _source(node) for node in body if isinstance(node, ast.ClassDef)}
    return found


def _source(node: ast.ClassDef) -> Source:
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    assigned = [each for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    targets = [
        target for each in assigned for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
    ]
    abstract = frozenset(each.name for each in functions if "abstractmethod" in map(_last, each.decorator_list))
    defined = {each.name for each in functions} | {_last(target) for target in targets}
    line = (ast.get_docstring(node) or "").partition("\n")[0]
    return Source(line, tuple(map(_last, node.bases)), frozenset(defined) - abstract, abstract)


def _last(node: ast.AST) -> str:
    """The last part of a name such as ``pl.Callback``; empty if it is something else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _of_kind(sources: Mapping[str, Source], bases: set[str]) -> set[str]:
    """The classes that inherit from some names, directly or by each other."""
    found: set[str] = set()
    while new := {name for name in sources.keys() - found if not {*bases, *found}.isdisjoint(sources[name].bases)}:
        found |= new
    return found


def _is_abstract(name: str, sources: Mapping[str, Source]) -> bool:
    """Whether a class leaves a function of its bases to its subclasses."""
    line, new = {name}, {name}
    while new := {base for each in new & sources.keys() for base in sources[each].bases} - line:
        line |= new
    known = [sources[each] for each in line & sources.keys()]
    return bool(frozenset().union(*(each.abstract for each in known)) - {each for one in known for each in one.defined})


def _offered(path: Path) -> set[str]:
    """What ``__all__`` of a package lists."""
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and _last(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()
