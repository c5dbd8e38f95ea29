"""Prints a constraints file for pip: every direct dependency of pyproject.toml at the lowest version that it allows."""

import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements(*extras: str) -> list[Requirement]:
    """The dependencies that pyproject.toml declares, with those of some extras and of the extras that these name."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    found = [Requirement(line) for line in project["dependencies"]]
    waiting = list(extras)
    while waiting:
        some = [Requirement(line) for line in project["optional-dependencies"][waiting.pop()]]
        waiting += [name for requirement in some if requirement.name == project["name"] for name in requirement.extras]
        found += [requirement for requirement in some if requirement.name != project["name"]]
    return found


def lowest(requirement: Requirement) -> Version:
    """The version behind `>=`; a requirement without one is an error."""
    (bound,) = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
    return Version(bound)


if __name__ == "__main__":
    for requirement in requirements("dev"):
        marker = f"; {requirement.marker}" if requirement.marker else ""
        print(f"{requirement.name}=={lowest(requirement)}{marker}")
