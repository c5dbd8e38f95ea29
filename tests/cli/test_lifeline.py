"""Lifelines between threads, which stand for processes."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from pfl_lightning.cli import lifeline
from pfl_lightning.cli.lifeline import Ending, Lifeline, Place
from pfl_lightning.errors import PflError

SECONDS = 20.0  # which no test takes


@pytest.fixture
def exits(monkeypatch) -> Iterator[list[int]]:
    """Exit codes with which a lifeline would have ended its process."""
    codes = []
    monkeypatch.setattr(lifeline, "GRACE", 0.2)
    monkeypatch.setattr(os, "_exit", codes.append)
    yield codes
    for thread in threading.enumerate():
        if thread.name == "lifeline":
            thread.join(SECONDS)


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def met(port: int, size: int) -> list[Lifeline]:
    places = [Place(rank, size, "127.0.0.1", port) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda place: Lifeline(place, SECONDS), places))


def test_a_process_that_ends_in_order_is_no_news(port, exits):
    lines = met(port, 3)
    for line in reversed(lines):
        line.close(Ending(0))
    assert [line.news(0.3) for line in lines] == [None, None, None]
    assert exits == []


def test_the_first_process_says_why_another_one_failed(port, exits):
    first, second, third = met(port, 3)
    second.close(Ending(2, "a is wrong"))
    assert first.news(SECONDS) == Ending(2, "rank 1 of 3: a is wrong")
    assert third.news(SECONDS) == Ending(2)


def test_an_error_of_the_first_process_ends_the_others_without_a_word(port, exits):
    first, *others = met(port, 3)
    first.close(Ending(1, "a is wrong"))
    assert [line.news(SECONDS) for line in others] == [Ending(1), Ending(1)]


@pytest.mark.parametrize("rank", [0, 2])
def test_one_process_says_which_one_is_gone(rank, port, exits):
    lines = met(port, 3)
    connections = list(lines[rank]._others.values())
    lines[rank]._others.clear()  # it hears no more of the others than a dead process
    for connection in connections:
        with socket.socket(fileno=os.dup(connection.fileno())) as end:  # as the system does when a process is killed
            end.shutdown(socket.SHUT_RDWR)
    found = [line.news(SECONDS) for line in lines if line is not lines[rank]]
    gone = f"rank {rank} of 3 is gone; add --ckpt_path last to the command to continue from the last checkpoint"
    assert found == [Ending(1, gone), Ending(1)]


def test_a_process_that_does_not_end_by_itself_is_ended(port, exits, capsys):
    lines = met(port, 2)
    lines[1].close(Ending(3, "a is wrong"))
    while not exits:
        sleep(0.05)
    assert exits == [3]
    assert capsys.readouterr().err == "pfl: error: rank 1 of 2: a is wrong\n"


def test_a_process_that_does_not_come_is_named(port):
    with pytest.raises(PflError, match="rank 1 of 2 has not joined the others within 1 s"):
        Lifeline(Place(0, 2, "127.0.0.1", port), 1.0)


def test_a_first_process_that_does_not_come_is_named(port):
    with pytest.raises(PflError, match=f"rank 0 of 2 has not been found at 127.0.0.1, port {port} within 1 s"):
        Lifeline(Place(1, 2, "127.0.0.1", port), 1.0)


def test_a_port_in_use_is_named():
    with socket.socket() as used:
        used.bind(("0.0.0.0", 0))
        used.listen()
        port = used.getsockname()[1]
        with pytest.raises(PflError, match=f"MASTER_PORT: {port} is in use; allowed: a free port"):
            Lifeline(Place(0, 2, "127.0.0.1", port), 1.0)
