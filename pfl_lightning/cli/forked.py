"""``pfl`` in processes forked from one that has imported what runs need, which is most of what a short run takes."""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from threading import Lock

SERVER = multiprocessing.get_context("forkserver")
# none of them may start a thread or touch a GPU when it is imported, which no forked process would survive
SERVER.set_forkserver_preload(["pfl_lightning.cli.fit", "torch.utils.tensorboard"])


class Forked:
    """``pfl`` outside the terminal's process group, with nothing on stdout and a file for stderr.

    Args:
        words: Its command line.
        said: The file.
    """

    one_at_a_time = Lock()  # a process that starts looks after all that have ended

    def __init__(self, words: Sequence[str], said: Path) -> None:
        self.has_ended = False
        self.process = SERVER.Process(target=run_alone, args=(words, said, {**os.environ}))
        with self.one_at_a_time:
            self.process.start()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.process.pid and not self.has_ended:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def wait(self) -> int:
        """Wait for the exit code; it is negative for a signal that has killed the process."""
        wait([self.process.sentinel])
        self.has_ended = True
        with self.one_at_a_time:
            self.process.join()
        return self.process.exitcode or 0


def run_alone(words: Sequence[str], said: Path, environment: Mapping[str, str]) -> None:
    """Run ``pfl`` in this process, which is forked."""
    os.setsid()
    with said.open("w") as err, open(os.devnull, "w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
    run(words, environment)


def run(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Do what ``python -m pfl_lightning`` does in an environment, and end as it does."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # or that of the server
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a child in the background may ignore it
    sys.argv = ["pfl", *words]
    code: object = 0
    try:
        runpy.run_module("pfl_lightning", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    atexit._run_exitfuncs()  # which multiprocessing leaves out
    sys.exit(code)  # type: ignore[arg-type]
