"""Where several processes meet, and freed memory."""

import platform
import socket
import subprocess
import sys

import pytest

from pfl_lightning import processes
from pfl_lightning.errors import PflError

KEEP = "from pfl_lightning.processes import keep_freed_memory; print(keep_freed_memory())"


@pytest.mark.parametrize("port", ["abc", "0", "-1", ""])
def test_a_port_is_a_number_from_1(port, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(PflError, match=f"^MASTER_PORT: {port} is not possible; allowed: 1 to 65535$"):
        processes.check_port()


def test_a_port_that_another_process_has_is_refused(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(port := taken.getsockname()[1]))
        with pytest.raises(PflError, match=rf"^MASTER_PORT: {port} is not possible \(.*\); allowed: a free port$"):
            processes.meet_here()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_glibc_takes_the_settings():
    # in a process of its own: they cannot be taken back
    run = subprocess.run([sys.executable, "-c", KEEP], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"


def test_nothing_is_set_without_glibc(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not processes.keep_freed_memory()
