import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

from filelock import FileLock

from pfl_lightning.data.reading import bar_options
from pfl_lightning.errors import PflError, one_line
from pfl_lightning.files import new_file

ALGORITHMS = {32: "md5", 64: "sha256"}
BLOCK = 1 << 20
CONNECT_SECONDS = 10
READ_SECONDS = 60


class Remote(NamedTuple):
    """A file on the network.

    Args:
        urls: Where it is, tried in this order.
        name: What it is called in the local folder.
        digest: Its md5 or sha256 sum in hexadecimal, told apart by their length.
    """

    urls: tuple[str, ...]
    name: str
    digest: str


def fetch(remote: Remote, folder: Path) -> Path:
    """Download a file unless it is there already.

    It appears under its name only when it is complete and verified; until then it is called ``<name>.part``, where a
    later call goes on after an interruption.

    Args:
        remote: What to download.
        folder: Where to; made if it is missing.

    Returns:
        The file in the folder.

    Raises:
        PflError: If no url gave the right file.
    """
    path = folder / remote.name
    with process_lock(folder / f"{remote.name}.lock"):
        return path if path.is_file() and _is_right(path, remote) else _fetch(remote, path)


def _fetch(remote: Remote, path: Path) -> Path:
    from urllib3.exceptions import HTTPError

    part = path.with_name(f"{path.name}.part")
    failures = []
    for url in remote.urls:
        try:
            _download(url, part)
            if _is_right(part, remote):
                return part.replace(path)
            part.unlink()
            failures.append(f"{url} (it sends another file, by the checksum)")
        except (OSError, HTTPError) as error:
            failures.append(f"{url} ({one_line(error)})")
    raise PflError(
        f"cannot download '{remote.name}' to '{path.parent}': {'; '.join(failures)}; the same command continues "
        "the download"
    )


def find_or_fetch(places: Sequence[Path], remote: Remote, member: str = "", key: str = "data.root") -> Path:
    """The first of these files that is there; if none is, the first is downloaded.

    Args:
        places: Where the file may be.
        remote: The file, or a zip archive that holds it.
        member: The file's name in the archive.
        key: The option that led to the file.

    Raises:
        PflError: If the download fails, or the file that is there is not the one to download.
    """
    path = next(filter(Path.is_file, places), places[0])
    if path.is_file():
        if not member and not _is_right(path, remote):
            raise PflError(
                f"{key}: '{path}' is cut or not the official {remote.name}, by its checksum; delete it for a new "
                "download, or unpack it by hand if you trust it"
            )
        return path
    try:
        archive = fetch(remote, path.parent)
        return _unpacked(archive, member, path) if member else archive
    except (PflError, OSError, BadZipFile, KeyError) as error:
        looked_for = ", ".join(f"'{place}'" for place in places)
        raise PflError(f"{key}: there is no {looked_for}, and {one_line(error)}; or put it there by hand") from error


def _unpacked(archive: Path, member: str, path: Path) -> Path:
    part = path.with_name(f"{path.name}.part")  # so that a file is complete if it is there
    with process_lock(path.with_name(f"{path.name}.lock")):
        if path.is_file():  # another process was first
            return path
        with ZipFile(archive) as files, files.open(member) as source, new_file(part) as target:
            shutil.copyfileobj(source, target)
        return part.replace(path)


@contextmanager
def process_lock(path: Path) -> Iterator[None]:
    """Let one process in at a time; all may enter where there can be no lock.

    Args:
        path: The file of the lock; missing folders are made. What fails leaves neither the file nor an empty folder.
    """
    lock = FileLock(path)
    missing_folders = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError):  # a read-only folder, a file system without locks
        pass
    try:
        yield
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
            for folder in missing_folders:
                folder.rmdir()
        raise
    finally:
        lock.release()


def _download(url: str, part: Path) -> None:
    """Write what is missing of the part, or all of it if the server cannot send from the middle."""
    import requests
    import rich.progress

    if part.is_symlink():  # whoever made the folder may have pointed it at another file of the user's
        part.unlink()
    start = part.stat().st_size if part.is_file() else 0
    # a compressed transfer has no byte positions of the file to go on from
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)) as response:
        if start and response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is left to send; the digest tells if that is true
        response.raise_for_status()
        mode = "ab" if response.status_code == HTTPStatus.PARTIAL_CONTENT else "wb"
        total = int(response.headers.get("Content-Length", 0))
        # raw, because some servers call a .gz file itself a compressed transfer
        tracked = rich.progress.wrap_file(response.raw, total=total, description=part.stem, **bar_options())
        with tracked as source, part.open(mode) as file:
            shutil.copyfileobj(source, file, BLOCK)


def _is_right(path: Path, remote: Remote) -> bool:
    digest = hashlib.new(ALGORITHMS[len(remote.digest)], usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest() == remote.digest
