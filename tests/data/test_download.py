import errno
import hashlib
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import NamedTuple
from zipfile import ZipFile

import pytest

from pfl_lightning.data.download import Remote, fetch, find_or_fetch, process_lock
from pfl_lightning.errors import PflError

CONTENT = random.Random(0).randbytes(300_000)
MD5, SHA256 = hashlib.md5(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()
CUT = 100_000


class Request(NamedTuple):
    path: str
    range: str | None
    sent: int


class Mirror(BaseHTTPRequestHandler):
    """Serves the content, each path with a habit of its own."""

    def do_GET(self):
        wanted = self.headers["Range"]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        match self.path:
            case "/missing":
                self.answer(404, b"sorry")
            case "/wrong":
                self.answer(200, CONTENT[::-1])
            case "/page":
                self.answer(200, b"<html>moved</html>")
            case "/whole":
                self.answer(200, CONTENT)
            case "/gzip":
                self.answer(200, CONTENT, {"Content-Encoding": "gzip"})
            case _ if start >= len(CONTENT):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(CONTENT)}"})
            case "/breaks" if not start:
                self.answer(200, CONTENT, sent=CUT)
            case _:
                self.answer(206 if wanted else 200, CONTENT[start:])

    def answer(self, status, body, headers=(), sent=None):
        self.server.log.append(Request(self.path, self.headers["Range"], len(body[:sent])))  # before the client goes on
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:sent])

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HTTPServer(("127.0.0.1", 0), Mirror) as server:
        server.log = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def remote(server):
    """Describes the content at some of the server's paths."""

    def describe(*paths, digest=SHA256):
        return Remote(tuple(f"http://127.0.0.1:{server.server_port}{path}" for path in paths), "it.zip", digest)

    return describe


def names(folder):
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("digest", [MD5, SHA256])
def test_file_is_downloaded_once(server, remote, tmp_path, digest, capfd):
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        path = fetch(remote("/plain", digest=digest), folder)
        assert path == folder / "it.zip"
        assert path.read_bytes() == CONTENT
        assert names(folder) == ["it.zip"]
    assert server.log == [("/plain", None, len(CONTENT))]
    assert capfd.readouterr() == ("", "")


def test_broken_download_goes_on_where_it_stopped(server, remote, tmp_path):
    with pytest.raises(PflError, match="the same command continues the download"):
        fetch(remote("/breaks"), tmp_path)
    assert names(tmp_path) == ["it.zip.part"]
    assert fetch(remote("/breaks"), tmp_path).read_bytes() == CONTENT
    assert server.log == [("/breaks", None, CUT), ("/breaks", f"bytes={CUT}-", len(CONTENT) - CUT)]
    assert names(tmp_path) == ["it.zip"]


# what is there, and then the requests: path, first byte that is asked for and number of bytes that are sent
WAYS = {
    "the next mirror goes on": (b"", ("/breaks", None, CUT), ("/plain", CUT, len(CONTENT) - CUT)),
    "the server ignores the range": (CONTENT[:CUT], ("/whole", CUT, len(CONTENT))),
    "the part is complete": (CONTENT, ("/plain", len(CONTENT), 0)),
    "it only claims to be compressed": (b"", ("/gzip", None, len(CONTENT))),
    "another file": (b"", ("/wrong", None, len(CONTENT)), ("/plain", None, len(CONTENT))),
    "no file": (b"", ("/missing", None, 5), ("/plain", None, len(CONTENT))),
    "a page": (b"", ("/page", None, 18), ("/plain", None, len(CONTENT))),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_file_comes_whole_whatever_servers_do(server, remote, tmp_path, way):
    part, *requests = WAYS[way]
    if part:
        (tmp_path / "it.zip.part").write_bytes(part)
    assert fetch(remote(*(path for path, _, _ in requests)), tmp_path).read_bytes() == CONTENT
    assert server.log == [(path, start and f"bytes={start}-", sent) for path, start, sent in requests]
    assert names(tmp_path) == ["it.zip"]


@pytest.mark.parametrize("part", [CONTENT + b"more", b"x" * CUT])
def test_part_of_another_file_is_deleted(server, remote, tmp_path, part):
    (tmp_path / "it.zip.part").write_bytes(part)
    with pytest.raises(PflError, match="another file, by the checksum"):
        fetch(remote("/plain"), tmp_path)
    assert not names(tmp_path)


@pytest.mark.parametrize("start", [b"", CONTENT[:CUT]], ids=["other", "beginning"])
def test_nothing_is_written_through_a_link(server, remote, tmp_path, start):
    """Of a folder from a stranger, who may have begun the download that he wants continued in the user's file."""
    user = tmp_path / "user"
    user.write_bytes(start)
    data = tmp_path / "data"
    data.mkdir()
    (data / "it.zip.part").symlink_to(user)
    (data / "it.zip.lock").symlink_to(user)
    assert fetch(remote("/plain"), data).read_bytes() == CONTENT
    assert not (data / "it.zip").is_symlink()
    assert user.read_bytes() == start


def test_a_member_is_not_unpacked_through_a_link(tmp_path):
    user = tmp_path / "user"
    user.write_text("mine")
    (tmp_path / "a.part").symlink_to(user)
    assert find_or_fetch([tmp_path / "a"], archive(tmp_path), "a").read_text() == "1"
    assert user.read_text() == "mine"


def test_an_archive_that_is_there_is_used_if_it_is_the_official_one(tmp_path):
    remote = archive(tmp_path)
    path = tmp_path / "some.zip"
    assert find_or_fetch([path], remote) == path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PflError, match=r"some\.zip' is cut or not the official some\.zip, by its checksum; delete it"):
        find_or_fetch([path], remote)


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[::-1]])
def test_wrong_file_that_is_there_is_replaced(remote, tmp_path, content):
    (tmp_path / "it.zip").write_bytes(content)
    assert fetch(remote("/plain"), tmp_path).read_bytes() == CONTENT


def test_error_is_one_line_with_every_url_and_its_reason(server, remote, tmp_path):
    urls = remote("/missing", "/breaks", "/wrong").urls
    refused = "http://127.0.0.1:9/discard"
    with pytest.raises(PflError) as caught:
        fetch(Remote((*urls, refused), "it.zip", MD5), tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"cannot download 'it.zip' to '{tmp_path}': {urls[0]} (404 ")
    assert f"{CUT} bytes read, {len(CONTENT) - CUT} more expected" in message
    assert f"{urls[2]} (it sends another file, by the checksum)" in message
    assert f"[Errno {errno.ECONNREFUSED}]" in message
    assert message.endswith("; the same command continues the download")


def test_a_download_that_fails_leaves_no_folder(tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(PflError, match=r"cannot download 'it\.zip' to "):
        fetch(Remote(("http://127.0.0.1:9/none",), "it.zip", MD5), tmp_path / "old" / "new" / "folder")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]


def test_folder_that_cannot_be_written_is_named(remote, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(PflError, match=r"cannot download 'it\.zip' to .*Not a directory"):
        fetch(remote("/plain"), tmp_path / "file")


def archive(folder):
    with ZipFile(folder / "some.zip", "w") as file:
        file.writestr("a", "1")
    digest = hashlib.md5((folder / "some.zip").read_bytes()).hexdigest()
    return Remote(("http://127.0.0.1:9/none",), "some.zip", digest)


def test_member_of_an_archive_is_unpacked_once(tmp_path):
    remote, places = archive(tmp_path), [tmp_path / "a", tmp_path / "other"]
    for _ in range(2):
        assert find_or_fetch(places, remote, "a").read_text() == "1"
        (tmp_path / "some.zip").unlink(missing_ok=True)
    (tmp_path / "a").rename(tmp_path / "other")
    assert find_or_fetch(places, remote, "a") == tmp_path / "other"


def test_a_process_waits_for_another_that_unpacks_the_same_file(tmp_path):
    remote = archive(tmp_path)
    waiting = threading.Thread(target=find_or_fetch, args=([tmp_path / "a"], remote, "a"))
    with process_lock(tmp_path / "a.lock"):
        waiting.start()
        waiting.join(0.5)
        assert names(tmp_path) == ["some.zip"]
        (tmp_path / "a").write_text("of the other")
    waiting.join()
    assert (tmp_path / "a").read_text() == "of the other"


def test_archive_without_the_file_is_refused(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: there is no '.*b', and .*'b'.*; or put it there by hand$"):
        find_or_fetch([tmp_path / "b"], archive(tmp_path), "b")
    assert names(tmp_path) == ["some.zip"]
