import hashlib
import os
import shutil
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import requests
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from urllib3.exceptions import HTTPError

from pfl_lightning.data.progress import on_terminal
from pfl_lightning.errors import PflError, one_line

ALGORITHMS = {32: "md5", 64: "sha256"}
BLOCK = 1 << 16
CONNECT_SECONDS, READ_SECONDS = 10, 60


class Remote(NamedTuple):
    """A file on the network.

    Args:
        urls: Where it is, tried in this order.
        name: What it is called in the local folder.
        digest: Its md5 or sha256 sum in hexadecimal, told apart by their length; None if none is published.
        size: Its bytes; None if unknown.
    """

    urls: tuple[str, ...]
    name: str
    digest: str | None = None
    size: int | None = None


def fetch(remote: Remote, folder: Path) -> Path:
    """Download a file unless it is there already.

    It appears under its name only when it is complete on disk and verified; until then it is called ``<name>.part``,
    where a later call goes on after an interruption.

    Args:
        remote: What to download.
        folder: Where to; made if it is missing.

    Returns:
        The file in the folder.

    Raises:
        PflError: If no url gave the right file.
    """
    path, part = folder / remote.name, folder / f"{remote.name}.part"
    if path.is_file() and _fault(path, remote) is None:
        return path
    failures = []
    for url in remote.urls:
        try:
            _download(url, part, remote)
            _verify(part, remote)
            _flush(part)
            os.replace(part, path)
            return path
        except (OSError, HTTPError) as error:
            failures.append(f"{url} ({_reason(error)})")
    raise PflError(
        f"cannot download '{remote.name}' to '{folder}': {'; '.join(failures)}; the same command continues the download"
    )


def fetch_members(remote: Remote, members: Sequence[str], folder: Path) -> None:
    """Download an archive, and unpack some of its files next to it, unless they exist.

    Raises:
        PflError: If that fails.
    """
    archive = fetch(remote, folder)
    try:
        for member in members:
            if not (folder / member).is_file():
                unpack(archive, member, folder / member)
    except (OSError, BadZipFile, KeyError) as error:
        raise PflError(f"cannot unpack '{archive}' ({error})") from error


def unpack(archive: Path, member: str, path: Path) -> None:
    """Unpack one file of a zip archive.

    Raises:
        OSError: If the archive cannot be read, or the file not be written.
        BadZipFile: If the archive is damaged.
        KeyError: If the file is not in it.
    """
    part = path.with_name(f"{path.name}.part")  # so that a file is complete if it is there
    with ZipFile(archive) as files, files.open(member) as source, part.open("wb") as target:
        shutil.copyfileobj(source, target)
    os.replace(part, path)


def add_file(digest: "hashlib._Hash | hashlib.blake2b", path: Path) -> None:
    """Add what is in a file to a digest."""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)


def _download(url: str, part: Path, remote: Remote) -> None:
    """Write what is missing of the part, or all of it if the server cannot send from the middle."""
    # only a digest can tell that the two pieces fit
    start = part.stat().st_size if remote.digest and part.is_file() else 0
    # a compressed transfer has no byte positions of the file to go on from
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)) as response:
        if start and response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is left to send; the digest tells if that is true
        if response.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise OSError(f"{response.status_code} {response.reason}")
        if response.status_code == HTTPStatus.OK:
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        if remote.size and total and total != remote.size:  # before a page with an excuse overwrites the part
            raise OSError(f"it offers {total:,} bytes instead of {remote.size:,}")
        part.parent.mkdir(parents=True, exist_ok=True)
        _receive(response, part, start, total or remote.size)
    if total and part.stat().st_size < total:  # before its version 2, urllib3 did not tell
        raise OSError(f"the connection broke after {part.stat().st_size:,} of {total:,} bytes")


def _receive(response: requests.Response, part: Path, start: int, total: int | None) -> None:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with (
        Progress("{task.description}", *columns, **on_terminal()) as progress,
        part.open("ab" if start else "wb") as file,
    ):
        task = progress.add_task(part.stem, total=total, completed=start)
        # undecoded, because some servers call a .gz file itself a compressed transfer
        for block in response.raw.stream(BLOCK, decode_content=False):
            file.write(block)
            progress.advance(task, len(block))


def _verify(part: Path, remote: Remote) -> None:
    if fault := _fault(part, remote):
        part.unlink()
        raise OSError(fault)


def _fault(path: Path, remote: Remote) -> str | None:
    """What tells the file from the right one."""
    if remote.size is not None and path.stat().st_size != remote.size:
        return f"it has {path.stat().st_size:,} bytes instead of {remote.size:,}"
    if remote.digest is None:
        return None
    algorithm = ALGORITHMS[len(remote.digest)]
    digest = hashlib.new(algorithm, usedforsecurity=False)
    add_file(digest, path)
    found = digest.hexdigest()
    return None if found == remote.digest.lower() else f"its {algorithm} is {found} instead of {remote.digest}"


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _reason(error: BaseException) -> str:
    """The innermost error, which requests and urllib3 wrap in the addresses of their objects."""
    inner = error.__cause__ or next((cause for cause in error.args if isinstance(cause, BaseException)), None)
    return _reason(inner) if inner else one_line(error)
