"""The settings files that come with the package, which every option for a settings file finds by name."""

import os
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

from pfl_lightning.errors import SettingsError

CONFIG_FLAGS = "-c", "--config"

_PACKAGE = Path(__file__).parent.parent
_FOLDERS = _PACKAGE / "configs", _PACKAGE.parent / "configs"  # of an installed package, and of a checkout


def configs() -> dict[str, Path]:
    """The settings files that come with the package, by name, such as ``methods/fedrep``."""
    folder = next(filter(Path.is_dir, _FOLDERS))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def config_file(word: str, option: str = "config") -> str:
    """The settings file that is meant: one that exists, else the one of that name that comes with the package.

    Args:
        word: A path, a name with or without ``.yaml``, or settings themselves, which are left alone.
        option: The option that has this value, for errors.

    Raises:
        SettingsError: If there is no such file.
    """
    path = Path(os.path.expanduser(word))  # which leaves the name of a user who is not there
    if any(mark in word for mark in ":{"):
        return word
    if path.is_file():
        return str(path)
    shipped = configs()
    name = word.removesuffix(".yaml")
    if name in shipped:
        return str(shipped[name])
    names = ", ".join(similar_names(name))
    raise SettingsError(f"{option}: {word} is not possible; allowed: a file that exists, or a name such as {names}")


def similar_names(name: str) -> list[str]:
    """At most three names of settings files: those that a wrong name is a part of, or that are most like it."""
    names = configs()
    word = name.removeprefix("configs/").lower()
    containing = sorted((shipped for shipped in names if word in shipped), key=len)
    similar = containing[:3] or get_close_matches(word, names, cutoff=0.5)
    return similar or ["quickstart", "methods/fedrep", "data/cifar10"]


def with_config_files(words: Iterable[str]) -> Iterator[str]:
    """The words of a command line, with a path in place of the name after each ``--config``.

    Raises:
        SettingsError: If there is no such file.
    """
    previous = ""
    for word in words:
        option, equals, value = word.partition("=")
        if option in CONFIG_FLAGS and equals:
            yield f"{option}={config_file(value)}"
        else:
            yield config_file(word) if previous in CONFIG_FLAGS else word
        previous = word
