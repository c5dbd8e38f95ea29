"""Where several processes meet."""

import socket

import pytest

from pfl_lightning import processes
from pfl_lightning.errors import PflError


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
