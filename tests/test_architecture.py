"""Imports point one way: a module may import its own room and the rooms below it."""

import ast
import io
import tokenize
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pfl_lightning

PACKAGE = Path(pfl_lightning.__file__).parent
LEVELS = [
    {"bounds", "errors", "files", "objects", "score_kind", "seeding", "threads", "tree"},
    {"paths", "processes", "tasks"},
    {"settings"},
    {"models", "system", "server", "client", "metrics", "report"},  # strangers to each other
    {"data", "uplink"},
    {"federation"},
    {"methods"},
    {"callbacks"},
    {"runs"},
    {"contract"},
    {"cli"},
    {"__main__"},
]
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    rooms = {room_of(path) for path in MODULES}
    return {name.split(".")[1] for name in names if name.startswith("pfl_lightning.")} & rooms


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.parent != PACKAGE or path.stem != "__init__"], ids=str
)
def test_imports_point_down(path):
    room = room_of(path)
    level = next(number for number, rooms in enumerate(LEVELS) if room in rooms)
    allowed = {room}.union(*LEVELS[:level])
    assert imported_rooms(path) <= allowed


def test_the_command_line_imports_no_method():
    for path in (PACKAGE / "cli").glob("*.py"):
        modules = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        assert {module for module in modules if module and module.startswith("pfl_lightning.methods.")} == set()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path) -> set[str]:
    known, names = {module_of(path) for path in MODULES}, set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (inner & known) or {node.module}
    return (names & known) - {module_of(path)}


def test_no_modules_import_each_other():
    assert "pfl_lightning.federation.cohort" in imported_modules(PACKAGE / "methods/method.py"), (
        "there is what to look at"
    )
    order = TopologicalSorter({module_of(path): imported_modules(path) for path in MODULES}).static_order()
    assert len(list(order)) == len(MODULES)


def tokens(node: ast.ClassDef) -> int:
    """Names, operators and numbers: lines would reward dense code."""
    words = tokenize.generate_tokens(io.StringIO(ast.unparse(node)).readline)
    return sum(word.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER) for word in words)


def test_a_class_stays_small_with_the_classes_that_it_inherits_from():
    own, bases = {}, {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                own[node.name] = tokens(node)
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]

    def family(name: str) -> set[str]:
        return {name}.union(*(family(base) for base in bases[name] if base in own and base != name))

    whole = {name: sum(own[each] for each in family(name)) for name in own}
    assert {name: size for name, size in whole.items() if size > 6000} == {}
    assert whole["DePRL"] > own["Method"] > 2000, "bases count"


def test_the_rule_of_a_method_stands_in_at_most_four_classes():
    from pfl_lightning import methods
    from pfl_lightning.methods.method import HOOKS

    kinds = [kind for kind in vars(methods).values() if isinstance(kind, type) and issubclass(kind, methods.Method)]
    for kind in kinds:
        rule = [base for base in kind.__mro__ if vars(base).keys() & {*HOOKS}]
        assert len(rule) <= 4, f"{kind}: bases that only add options do not count"


def test_a_method_takes_no_option_of_its_bases_away():
    removed = {}
    for path in (PACKAGE / "methods").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
                constants = [word.arg for word in call.keywords if isinstance(word.value, ast.Constant)]
                removed |= {path.stem: constants} if constants else {}
    assert removed == {"linear_fedrep": ["pretrained", "head", "task"]}, "its closed form leaves nothing of these open"
