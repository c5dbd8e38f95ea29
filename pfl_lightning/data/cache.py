import glob
import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import torch
from torch import Tensor

from pfl_lightning.data.download import add_file
from pfl_lightning.errors import PflError, one_line


def cached(
    parse: Callable[[], dict[str, Tensor]], sources: Sequence[Path], folder: Path, name: str, version: int
) -> dict[str, Tensor]:
    """The result of a slow parse, from a file if the same sources were parsed before.

    The file is in ``.pfl_cache`` in the folder; it may be deleted at any time, and it takes the place of the one for
    other contents or another version. Where it cannot be written, one warning tells so.

    Args:
        parse: Reads the sources.
        sources: The files that the result depends on.
        folder: Where the cache is.
        name: Tells the caches in one folder apart.
        version: Of the parser; files are parsed again when it changes.

    Returns:
        What parse returned, now or then.

    Raises:
        PflError: If a source cannot be read.
    """
    try:
        path = folder / ".pfl_cache" / f"{name}-{_key(sources, folder, version)}.pt"
        tensors = _read(path)
        if tensors is not None:
            return tensors
        tensors = parse()
    except OSError as error:
        raise PflError(f"data.root: cannot read '{error.filename or folder}' ({error.strerror})") from error
    try:
        _write(tensors, path)
        _delete_others(path, name)
    except (OSError, RuntimeError) as error:  # torch turns OSError into RuntimeError
        warnings.warn(
            f"cannot keep what was read in '{path}', so it will be read again each time ({one_line(error)})",
            stacklevel=2,
        )
    return tensors


def _key(sources: Sequence[Path], folder: Path, version: int) -> str:
    digest = hashlib.blake2b(str(version).encode(), digest_size=16)
    for source in sorted(sources):
        digest.update(f"\0{os.path.relpath(source, folder)}\0".encode())
        add_file(digest, source)
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Tensor] | None:
    try:
        tensors: dict[str, Tensor] = torch.load(path, mmap=True, weights_only=True)
        return tensors
    except Exception:  # whatever a damaged file makes torch raise, the sources are there
        return None


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a temporary file, then rename it to the final one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{uuid4().hex}.tmp"  # another process may write the same
    try:
        with temporary.open("wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _delete_others(path: Path, name: str) -> None:
    key = path.stem.removeprefix(f"{name}-")
    for other in path.parent.glob(f"{glob.escape(name)}-{'?' * len(key)}.pt"):
        if other != path:
            other.unlink(missing_ok=True)
