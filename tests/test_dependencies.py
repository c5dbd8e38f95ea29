"""What is imported is declared: nobody else's dependencies are relied on."""

import ast
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
# imported where they are used
OPTIONAL = ["cluster", "datasets", "huggingface", "mlflow", "privacy", "search", "wandb"]
PEERS = ROOT / "tools" / "peers"  # their libraries live in environments of their own
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(*extras: str) -> list[Requirement]:
    """The dependencies that pyproject.toml declares, with those of some extras and of the extras that these name."""
    lines = PROJECT["dependencies"] + [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    found = [Requirement(line) for line in lines]
    ours = {extra for requirement in found if requirement.name == PROJECT["name"] for extra in requirement.extras}
    return requirements(*ours.union(extras)) if ours - set(extras) else found


def imported(*folders: str) -> set[str]:
    """The top-level modules that the files of some folders import, without the standard library and our own."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if PEERS not in path.parents]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    ours = {path.stem for folder in (".", "tests", "tools") for path in (ROOT / folder).iterdir()}
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - ours


NOTEBOOK = {"IPython"}  # imported only in a notebook, which it runs


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not know the modules of every distribution")
@pytest.mark.parametrize(("folders", "extras"), [(["pfl_lightning"], OPTIONAL), (["tests", "tools"], ["dev"])])
def test_what_is_imported_is_declared(folders, extras):
    declared = {canonicalize_name(requirement.name) for requirement in requirements(*extras)}
    known = packages_distributions()
    modules = imported(*folders)
    assert modules
    owners = {name: {canonicalize_name(owner) for owner in known.get(name, [name])} for name in modules}
    assert {name for name in modules if not owners[name] & declared} <= NOTEBOOK


def test_every_dependency_has_a_lowest_version():
    for requirement in requirements("dev"):
        bounded = any(specifier.operator == ">=" for specifier in requirement.specifier)
        assert bounded or requirement.name == PROJECT["name"], requirement
