"""``pfl`` in processes forked from one that has its packages, whose imports take most of the time of a short run."""

import os
import sys
from multiprocessing.connection import Connection, wait
from pathlib import Path

from pfl_lightning.cli.forked import SERVER, run

PRELOADED = ["pfl_lightning.runs.experiment", "torch.utils.tensorboard", "sklearn", "networkx", "hypothesis", "pytest"]
SERVER.set_forkserver_preload(PRELOADED)
PATHS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]


class Command:
    """``python -m pfl_lightning`` in a folder, where the fakes can be imported."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        paths = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])
        given = {**os.environ, "PYTHONPATH": paths, **environment}
        (self.out, out), (self.err, err) = (SERVER.Pipe(duplex=False) for _ in range(2))
        self.process = SERVER.Process(target=run_there, args=(folder, words, given, out, err))
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
    folder: Path, words: tuple[str, ...], environment: dict[str, str], out: Connection, err: Connection
) -> None:
    """Do what ``python -m pfl_lightning`` does in a folder."""
    os.chdir(folder)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.path.insert(0, str(folder))
    run(words, environment)
