"""Files that are complete on disk, or seen not to be."""

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing; it is on disk when the block ends.

    Args:
        path: The file; one that is there is removed first, never overwritten. Missing folders are made.

    Raises:
        OSError: If it cannot be written, for example because the disk is full; nothing is left of it then.
    """
    make_folder(path.parent)
    path.unlink(missing_ok=True)
    try:
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        path.unlink(missing_ok=True)
        for cause in (error, error.__context__):  # torch.save hides what the system refused
            if isinstance(cause, OSError):
                raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def save(content: Any, path: Path) -> None:
    """Write with ``torch.save`` to a new file; see ``new_file``."""
    with new_file(path) as file:
        torch.save(content, file)


def copy(source: Path, target: Path) -> None:
    """Copy to a new file; see ``new_file``."""
    with source.open("rb") as old, new_file(target) as file:
        shutil.copyfileobj(old, file, 1 << 20)


def replace(source: Path, target: Path) -> None:
    """Rename a file of the same folder, on disk when this returns; before that, the target is what it was."""
    os.replace(source, target)
    _sync(target.parent)


def write_text(text: str, path: Path) -> None:
    """Write a whole text file, on disk when this returns; before that, the file is what it was."""
    temporary = path.with_name(f".{path.name}.tmp")
    with new_file(temporary) as file:
        file.write(text.encode())
    replace(temporary, path)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there; on disk when this returns."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def is_intact(path: Path) -> bool:
    """Whether a file holds what ``torch.save`` wrote, to the byte; takes about 0.4 s for 1 GB.

    ``torch.load`` does not look at the checksums in the file, and trusts sizes and attributes that differ from ours.
    """
    try:
        with zipfile.ZipFile(path) as records:
            plain = all(
                record.compress_size == record.file_size and record.external_attr == 0 for record in records.infolist()
            )
            return plain and records.testzip() is None
    except Exception:  # whatever a damaged file makes zipfile raise
        return False


def _sync(folder: Path) -> None:
    """Put the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
