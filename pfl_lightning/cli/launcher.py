"""Starts runs of ``pfl fit`` as forks of a process that has imported what they need, which takes them seconds."""

import gc
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from threading import Thread
from typing import BinaryIO

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# none of them may start a thread, as a fork would be without; macOS has libraries that no fork may use
IMPORTED = ["pfl_lightning.cli.fit", "torch.utils.tensorboard", "sklearn"] if sys.platform != "darwin" else []


class Launcher:
    """A process that starts runs one after another, outside the process group of the terminal.

    A run gets SIGTERM if the process that has made the launcher ends before it.

    Args:
        folder: The working folder of all runs.
    """

    def __init__(self, folder: Path) -> None:
        self.pipe, end = Pipe()
        with end:
            command = [sys.executable, "-m", __name__, str(end.fileno())]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # which ends with this process
                stdout=subprocess.DEVNULL,
                pass_fds=[end.fileno()],
                cwd=folder,
                start_new_session=True,
            )

    def start(self, words: Sequence[str], stderr: BinaryIO) -> "LaunchedRun":
        """Start a run, after the one before has ended.

        Args:
            words: The words after ``pfl``.
            stderr: The file of its stderr, of which it inherits the lock.
        """
        self.pipe.send(words)
        send_handle(self.pipe, stderr.fileno(), self.process.pid)
        return LaunchedRun(self, self.pipe.recv())

    def end(self) -> None:
        """End the process, after its last run."""
        self.pipe.close()
        self.process.communicate()


class LaunchedRun:
    """A run, with the methods of a process.

    Args:
        launcher: What has started it.
        pid: The number of its process.
    """

    def __init__(self, launcher: Launcher, pid: int) -> None:
        self.launcher = launcher
        self.pid = pid

    def send_signal(self, number: int) -> None:
        """Send a signal, if the run has not ended."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the exit code; that of SIGKILL if the launcher was killed."""
        try:
            return int(self.launcher.pipe.recv())
        except EOFError:
            self.launcher.end()  # which lets the run save
            return -signal.SIGKILL
        finally:
            self.pid = 0


def serve(pipe: Connection) -> Sequence[str]:
    """Fork a process for each run until the other end is closed; in the fork, return the words of its command."""
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # or a collection in a fork would copy all of it
    while True:
        words: Sequence[str] = pipe.recv()
        stderr = recv_handle(pipe)
        pid = os.fork()
        if not pid:
            os.dup2(stderr, sys.stderr.fileno())
            os.close(stderr)
            return words
        os.close(stderr)
        pipe.send(pid)
        _, status = os.waitpid(pid, 0)
        pipe.send(os.waitstatus_to_exitcode(status))


def stop_after(stdin: int) -> None:
    """Let the run save and stop when this pipe ends, into which nothing is written."""
    os.read(stdin, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Be a launcher, and in each fork of it a run."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # those for a run wait until it can take them
    number = int(sys.argv[1])
    os.set_inheritable(number, False)
    pipe = Connection(number)
    try:
        words = serve(pipe)
    except (EOFError, BrokenPipeError):
        os._exit(0)  # at once, without what libraries say at their end
    pipe.close()
    Thread(target=stop_after, args=(os.dup(0),), daemon=True).start()  # before signals, which are for the main thread
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    sys.argv = ["pfl", *words]
    runpy.run_module("pfl_lightning", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
