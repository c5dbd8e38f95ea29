"""``pfl`` in processes forked from one that has its packages, whose imports take most of the time of a short run."""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

SERVER = multiprocessing.get_context("forkserver")
# none of them may start a thread when it is imported, which no forked process would survive
PRELOADED = ["pfl_lightning.cli.fit", "torch.utils.tensorboard", "sklearn", "networkx", "hypothesis", "pytest"]
SERVER.set_forkserver_preload(PRELOADED)
PATHS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]


class Command:
    """``python -m pfl_lightning`` in a folder, where the fakes can be imported; or a script, which cannot import it."""

    def __init__(self, folder: Path, *words: str, is_script: bool = False, **environment: str) -> None:
        paths = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])
        given = {**os.environ, "PYTHONPATH": paths, **environment}
        (self.out, out), (self.err, err) = (SERVER.Pipe(duplex=False) for _ in range(2))
        self.process = SERVER.Process(target=run_there, args=(folder, is_script, words, given, out, err))
        self.process.start()
        out.close()
        err.close()

    def end(self, seconds: float = 300) -> tuple[int | None, str, str]:
        """Exit code, stdout and stderr, when all processes that could write to them have ended."""
        told = {self.out: b"", self.err: b""}
        unread = {*told}
        while unread and (ready := wait(unread, seconds)):
            for end in ready:
                told[end] += (piece := os.read(end.fileno(), 2**16))
                unread -= set() if piece else {end}
        self.process.join(0 if unread else seconds)
        self.process.kill()
        return self.process.exitcode, told[self.out].decode(), told[self.err].decode()


def pfl(folder: Path, *words: str, **environment: str) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of ``pfl`` in a folder."""
    return Command(folder, *words, **environment).end()


def run_there(
    folder: Path,
    is_script: bool,
    words: tuple[str, ...],
    environment: dict[str, str],
    out: Connection,
    err: Connection,
) -> None:
    """Do what ``python -m pfl_lightning`` does in a folder, or a script."""
    os.chdir(folder)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    if not is_script:
        sys.path.insert(0, str(folder))
    run(words, environment)


def run(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Do what ``python -m pfl_lightning`` does in an environment, and end as it does."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # or that of the server
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a child in the background may ignore it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one of nohup this
    sys.argv = ["pfl", *words]
    code: object = 0
    try:
        runpy.run_module("pfl_lightning", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    atexit._run_exitfuncs()  # which multiprocessing leaves out
    sys.exit(code)  # type: ignore[arg-type]
