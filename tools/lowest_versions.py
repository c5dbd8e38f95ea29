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
    """The dependencies that pyproject.toml declares, with those of some extras."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


def lowest(requirement: Requirement) -> Version:
    """The version behind `>=`; a requirement without one is an error."""
    (bound,) = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
    return Version(bound)


if __name__ == "__main__":
    for requirement in requirements("dev"):
        marker = f"; {requirement.marker}" if requirement.marker else ""
        print(f"{requirement.name}=={lowest(requirement)}{marker}")
