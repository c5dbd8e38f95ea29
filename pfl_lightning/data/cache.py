import glob
import hashlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from pfl_lightning import files
from pfl_lightning.data.download import add_file
from pfl_lightning.errors import PflError, one_line


def cached(
    parse: Callable[[], dict[str, Tensor]],
    types: Mapping[str, torch.dtype],
    sources: Sequence[Path],
    folder: Path,
    name: str,
    version: int,
) -> dict[str, Tensor]:
    """The result of a slow parse, from a file if the same sources were parsed before.

    The file is in ``.pfl_cache`` in the folder; it may be deleted at any time, and it takes the place of the one for
    other contents or another version. A file with a changed byte, or with something else in it, is not believed. Where
    it cannot be written, one warning tells so.

    Args:
        parse: Reads the sources.
        types: The tensors that it returns, by name.
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
        key = _key(sources, folder, name, version)
        path = folder / ".pfl_cache" / f"{name}-{key}.pt"
        tensors = _read(path, key, types)
        if tensors is not None:
            return tensors
        tensors = parse()
    except OSError as error:
        raise PflError(f"data.root: cannot read '{error.filename or folder}' ({error.strerror})") from error
    try:
        _write({"key": key, "tensors": tensors}, path)
        _delete_others(path, name, key)
    except (OSError, RuntimeError) as error:  # torch has the second for what it cannot write
        warnings.warn(
            f"cannot keep what was read in '{path}', so it will be read again each time ({one_line(error)})",
            stacklevel=2,
        )
    return tensors


def _key(sources: Sequence[Path], folder: Path, name: str, version: int) -> str:
    digest = hashlib.blake2b(f"{name}\0{version}".encode(), digest_size=16)
    for source in sorted(sources):
        digest.update(f"\0{os.path.relpath(source, folder)}\0".encode())
        add_file(digest, source)
    return digest.hexdigest()


def _read(path: Path, key: str, types: Mapping[str, torch.dtype]) -> dict[str, Tensor] | None:
    if not (path.is_file() and files.is_intact(path)):
        return None
    try:
        content = torch.load(path, mmap=True, weights_only=True)
        tensors: dict[str, Tensor] = content["tensors"]
        is_ours = content["key"] == key and {name: tensor.dtype for name, tensor in tensors.items()} == types
        return tensors if is_ours else None
    except Exception:  # whatever another file makes torch raise, the sources are there
        return None


def _write(content: dict[str, Any], path: Path) -> None:
    """Write a temporary file, then rename it to the final one."""
    temporary = path.parent / f".{uuid4().hex}.tmp"  # another process may write the same
    files.save(content, temporary)
    try:
        files.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _delete_others(path: Path, name: str, key: str) -> None:
    for other in path.parent.glob(f"{glob.escape(name)}-{'?' * len(key)}.pt"):
        if other != path:
            other.unlink(missing_ok=True)
