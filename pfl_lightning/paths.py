"""Paths as users write them."""

from pathlib import Path

from pfl_lightning.errors import PflError


def expand_home(path: str | Path, key: str) -> Path:
    """A path with the home folder of a user for ``~``.

    Args:
        path: What the user wrote.
        key: The option.

    Raises:
        PflError: If it is empty, which would mean the working folder, or there is no such user.
    """
    if not str(path):
        raise PflError(f"{key} must be a path, such as . for this folder, got ''")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise PflError(f"{key}: {Path(path).parts[0]} in {path} is not known here") from error
