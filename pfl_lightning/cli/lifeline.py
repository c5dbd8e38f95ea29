"""Connections by which each process of a run learns that another one has ended before its time, and why.

Collectives would tell it only at the next exchange, and not who it was; over NCCL they would wait for minutes.
"""

import json
import os
import secrets
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from threading import Event, Thread
from time import monotonic, sleep
from typing import NamedTuple

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from pfl_lightning.cli.console import say
from pfl_lightning.errors import PflError, one_line

GRACE = 10.0  # seconds in which a process may end by itself when another one has ended
GONE = "is gone; add --ckpt_path last to the command to continue from the last checkpoint"


class Place(NamedTuple):
    """Where the processes of a run meet.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        host: Address of the machine of the first process.
        port: A port there, of the store that a process group begins with.
        has_store: Whether the launcher of the processes has opened this store.
    """

    rank: int
    size: int
    host: str
    port: int
    has_store: bool = False

    def name(self, rank: int) -> str:
        """A process in words."""
        return f"rank {rank} of {self.size}"


class Ending(NamedTuple):
    """How a process ends.

    Attributes:
        code: Its exit code.
        line: What there is to say about it; empty if another process says it.
    """

    code: int
    line: str = ""


class Lifeline:
    """Connects the first process with every other one; whichever fails ends them all.

    A process that learns of it has ten seconds to end by itself, which it does at its next exchange over gloo.

    Args:
        place: Where the processes meet.
        seconds: How long a process waits for the others.
        check: Called while the first process waits for others; raises an error if one of them will not come.

    Raises:
        PflError: If the port is in use, or a process does not come.
    """

    def __init__(self, place: Place, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        self.place = place
        self._ending: Ending | None = None
        self._heard = Event()
        self._said = self._closed = False
        self._others: dict[int, Connection] = {}
        self._store = _store(place, seconds)  # kept, since the process group will use it too
        if place.rank == 0:
            self._listen(seconds, check)
        else:
            self._others[0] = self._call()
        Thread(target=self._watch, name="lifeline", daemon=True).start()

    def news(self, seconds: float) -> Ending | None:
        """How this process has to end because of another one; None if none has failed within some seconds."""
        self._heard.wait(seconds)
        self._said = self._heard.is_set()
        return self._ending

    def close(self, ending: Ending) -> None:
        """Tell the others how this process ends; the first one says itself what there is to say."""
        self._closed = True  # the others may be gone from now on
        ending = ending._replace(line="") if self.place.rank == 0 else ending
        for other in list(self._others.values()):
            _send(other, ending)

    def _listen(self, seconds: float, check: Callable[[], None]) -> None:
        """Wait until all others have called the first process."""
        secret = secrets.token_bytes(16)
        listener = Listener(("", 0), backlog=self.place.size, authkey=secret)
        Thread(target=self._accept, args=(listener,), daemon=True).start()
        self._store.set("lifeline", json.dumps([listener.address[1], secret.hex()]))
        late = monotonic() + seconds
        while missing := [rank for rank in range(1, self.place.size) if rank not in self._others]:
            check()
            if monotonic() > late:
                raise PflError(f"{self.place.name(missing[0])} has not joined the others within {seconds:g} s")
            sleep(0.05)

    def _accept(self, listener: Listener) -> None:
        with listener:
            while len(self._others) < self.place.size - 1:
                try:
                    caller = listener.accept()
                    self._others[int(caller.recv_bytes())] = caller
                except (AuthenticationError, OSError, EOFError):  # a stranger
                    continue

    def _call(self) -> Connection:
        """Call the first process."""
        try:
            port, secret = json.loads(self._store.get("lifeline"))
            connection = Client((self.place.host, port), authkey=bytes.fromhex(secret))
            connection.send_bytes(str(self.place.rank).encode())
        except (DistError, OSError, EOFError) as error:
            raise PflError(f"{self.place.name(0)} is lost: {one_line(error)}") from error
        return connection

    def _watch(self) -> None:
        """Listen to the others until all of them have ended; end this process if one has failed."""
        while self._others and self._ending is None:
            ready = wait(list(self._others.values()))
            for rank in [rank for rank, connection in self._others.items() if connection in ready]:
                self._hear(rank)
        if self._ending is not None:
            sleep(GRACE)
            if self._ending.line and not self._said:
                say(self._ending.line)
            os._exit(self._ending.code)

    def _hear(self, rank: int) -> None:
        name = self.place.name(rank)
        try:
            code, line = json.loads(self._others[rank].recv_bytes())
            line = line and f"{name}: {line}"
        except (EOFError, OSError):
            code, line = 1, f"{name} {GONE}"
        del self._others[rank]
        if code and not self._closed and self._ending is None:
            self._ending = Ending(code, line if self.place.rank == (rank == 0) else "")
            self.close(Ending(code))
            self._heard.set()


def _store(place: Place, seconds: float) -> TCPStore:
    """The store at the place where the processes meet."""
    where, opens = f"{place.host}, port {place.port}", place.rank == 0 and not place.has_store
    try:
        return TCPStore(
            place.host,
            place.port,
            is_master=opens,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=not place.has_store,
        )
    except DistError as error:
        if opens:
            reason = "is in use" if "EADDRINUSE" in str(error) else f"cannot be used ({one_line(error)})"
            raise PflError(f"MASTER_PORT: {place.port} {reason}; allowed: a free port") from error
        raise PflError(f"{place.name(0)} has not been found at {where} within {seconds:g} s") from error


def _send(other: Connection, ending: Ending) -> None:
    try:
        other.send_bytes(json.dumps(ending).encode())
    except OSError:  # it has ended
        return
