"""The peers, and an environment for each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer

PATIENCE_TO_BUILD = 3600  # seconds


class PeerError(Exception):
    """A peer cannot be built or run, or does something else than the workload; one line."""


@dataclass(frozen=True)
class Peer:
    """A library that is measured.

    Attributes:
        program: File beside this one.
        requirements: Pins for pip; none for what runs with the caller's own packages.
    """

    program: str
    requirements: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the table calls it: its file, less what keeps the file from shadowing the library."""
        return Path(self.program).stem.removesuffix("_round")


TORCH = "torch==2.15.0"
TORCHVISION = "torchvision==0.29.2"
JAX = "jax==0.10.2"
NUMPY = "numpy==2.4.6"
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("plain_torch.py"),
        Peer("jax_scan.py", (JAX, NUMPY)),
        Peer("fedjax_round.py", ("fedjax==0.0.17", JAX, NUMPY)),
    )
}


def environment(peer: Peer, root: Path) -> Path:
    """Interpreter of the peer's own environment under ``root``, which is built on the first call.

    Raises:
        PeerError: pip cannot install it, for instance because it needs a newer Python.
    """
    if not peer.requirements:
        return Path(sys.executable)
    folder = root.absolute() / peer.name
    interpreter = folder / "bin" / "python"
    marker = folder / "complete.txt"
    wanted = "\n".join(peer.requirements)
    if not (marker.exists() and marker.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        execute([sys.executable, "-m", "venv", folder], PATIENCE_TO_BUILD)
        pip: list[str | Path] = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        execute([*pip, *peer.requirements], PATIENCE_TO_BUILD)
        marker.write_text(wanted)
    return interpreter


def execute(
    command: Sequence[str | Path],
    timeout: float,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[str, int]:
    """Run a command.

    Args:
        command: Its words.
        timeout: Seconds after which it is stopped.
        folder: Where it runs.
        environ: Further variables; without ``PYTHONPATH`` the command sees nothing but its own packages.

    Returns:
        What it printed, stdout first, and the most memory that one of its processes held, in bytes.

    Raises:
        PeerError: It fails; with the line that says most.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with TemporaryFile("w+", errors="replace") as out, TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env={**variables, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        timer = Timer(timeout, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)  # which alone tells the memory
        late = not timer.is_alive()
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text = f"{out.read()}\n{err.read()}"
    if process.returncode:
        reason = last_line(text) or f"exit status {process.returncode}"
        raise PeerError(f"took more than {timeout:.0f} seconds" if late else reason)
    return text, usage.ru_maxrss * 1024


def last_line(text: str) -> str:
    """The last of pip's errors, otherwise the last line there is."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return " ".join((errors or lines or [""])[-1].split())[:300]
