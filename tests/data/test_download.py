import errno
import hashlib
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import NamedTuple
from zipfile import ZipFile

import pytest

from pfl_lightning.data.download import Remote, fetch, find_or_fetch
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
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **dict(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.server.log.append(Request(self.path, self.headers["Range"], len(body[:sent])))  # before the client goes on
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


@pytest.mark.parametrize("digest", [MD5, SHA256, None])
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


def test_next_mirror_goes_on_where_the_one_before_broke(server, remote, tmp_path):
    assert fetch(remote("/breaks", "/plain"), tmp_path).read_bytes() == CONTENT
    assert server.log[1] == ("/plain", f"bytes={CUT}-", len(CONTENT) - CUT)


def test_nothing_is_appended_to_a_part_that_no_digest_evaluates(server, remote, tmp_path):
    (tmp_path / "it.zip.part").write_bytes(b"of another file")
    assert fetch(remote("/plain", digest=None), tmp_path).read_bytes() == CONTENT
    assert server.log == [("/plain", None, len(CONTENT))]


def test_server_that_ignores_the_range_starts_anew(server, remote, tmp_path):
    (tmp_path / "it.zip.part").write_bytes(CONTENT[:CUT])
    assert fetch(remote("/whole"), tmp_path).read_bytes() == CONTENT
    assert server.log == [("/whole", f"bytes={CUT}-", len(CONTENT))]


def test_complete_part_is_taken_as_it_is(server, remote, tmp_path):
    (tmp_path / "it.zip.part").write_bytes(CONTENT)
    assert fetch(remote("/plain"), tmp_path).read_bytes() == CONTENT
    assert server.log == [("/plain", f"bytes={len(CONTENT)}-", 0)]


@pytest.mark.parametrize("part", [CONTENT + b"more", b"x" * CUT])
def test_part_of_another_file_is_deleted(server, remote, tmp_path, part):
    (tmp_path / "it.zip.part").write_bytes(part)
    with pytest.raises(PflError, match="another file, by the checksum"):
        fetch(remote("/plain"), tmp_path)
    assert not names(tmp_path)


def test_file_that_only_claims_to_be_a_compressed_transfer_stays_as_it_is(remote, tmp_path):
    assert fetch(remote("/gzip"), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("bad", ["/wrong", "/missing", "/page"])
def test_next_mirror_is_tried(server, remote, tmp_path, bad):
    assert fetch(remote(bad, "/plain"), tmp_path).read_bytes() == CONTENT
    assert [request.path for request in server.log] == [bad, "/plain"]
    assert names(tmp_path) == ["it.zip"]


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


def test_folder_that_cannot_be_written_is_named(remote, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(PflError, match=r"cannot download 'it\.zip' to .*Not a directory"):
        fetch(remote("/plain"), tmp_path / "file")


def archive(folder, digest=None):
    with ZipFile(folder / "some.zip", "w") as file:
        file.writestr("a", "1")
    return Remote(("http://127.0.0.1:9/none",), "some.zip", digest)


def test_member_of_an_archive_is_unpacked_once(tmp_path):
    remote, places = archive(tmp_path), [tmp_path / "a", tmp_path / "other"]
    for _ in range(2):
        assert find_or_fetch(places, remote, "a").read_text() == "1"
        (tmp_path / "some.zip").unlink(missing_ok=True)
    (tmp_path / "a").rename(tmp_path / "other")
    assert find_or_fetch(places, remote, "a") == tmp_path / "other"


def test_archive_without_the_file_is_refused(tmp_path):
    with pytest.raises(PflError, match=r"^data\.root: there is no '.*b', and .*'b'.*; or put it there by hand$"):
        find_or_fetch([tmp_path / "b"], archive(tmp_path), "b")
    assert names(tmp_path) == ["some.zip"]
