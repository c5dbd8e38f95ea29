import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from pfl_lightning import files
from pfl_lightning.data.download import process_lock
from pfl_lightning.errors import PflError, one_line

Content = dict[str, Any]  # tensors, and lists of words
_written: list[Path] = []  # since ``discard_if_refused`` was entered


def cached(parse: Callable[[], Content], sources: Sequence[Path], folder: Path, name: str, version: int) -> Content:
    """The result of a slow parse, from a file if the same sources were parsed before.

    The file is ``.pfl_cache/<name>.pt`` in the folder; it may be deleted at any time, and is replaced when the version
    or a source differs: its name, its size or the time of its last change; or if a byte of the file itself has changed.
    Of several processes one parses, and the others wait and then map its file. Where it cannot be written, a warning
    says so.

    Args:
        parse: Reads the sources.
        sources: The files that the result depends on.
        folder: Where the cache is.
        name: Tells the caches in one folder apart.
        version: Of the parser; files are parsed again when it changes.

    Returns:
        What parse returned, now or then.

    Raises:
        OSError: If a source cannot be read.
    """
    key = _key(sources, folder, version)
    path = folder / ".pfl_cache" / f"{name}.pt"
    content = _read(path, key)
    if content is None:
        with process_lock(path.with_suffix(".lock")):
            content = _read(path, key)
            if content is None:
                content = parse()
                _write({"key": key, "content": content}, path)
                content = _read(path, key) or content  # mapped, as other processes do
    return content


@contextmanager
def discard_if_refused() -> Iterator[None]:
    """Remove the caches that the block has written if it ends with a PflError: it refuses what is in them."""
    _written.clear()
    try:
        yield
    except PflError:
        for path in _written:
            with suppress(OSError):
                path.unlink()
                path.with_suffix(".lock").unlink(missing_ok=True)
                path.parent.rmdir()
        raise


def _key(sources: Sequence[Path], folder: Path, version: int) -> str:
    digest = hashlib.blake2b(f"{version}".encode(), digest_size=16)
    for source in sorted(sources):
        stat = source.stat()
        entry = f"\0{os.path.relpath(source, folder)}\0{stat.st_size}\0{stat.st_mtime_ns}"
        digest.update(os.fsencode(entry))  # a name need not be UTF-8
    return digest.hexdigest()


def _read(path: Path, key: str) -> Content | None:
    if not files.is_intact(path):  # torch does not look at the checksums in it
        return None
    try:
        stored = torch.load(path, mmap=True, weights_only=True)
        return dict(stored["content"]) if stored["key"] == key else None
    except Exception:  # whatever is wrong with it, the sources are there
        return None


def _write(stored: dict[str, Any], path: Path) -> None:
    try:
        with files.whole_file(path) as file:
            torch.save(stored, file)
        _written.append(path)
    except (OSError, RuntimeError) as error:  # torch has the second for what it cannot write
        warnings.warn(
            f"cannot keep what was read in '{path}', so it will be read again each time ({one_line(error)})",
            stacklevel=3,
        )
