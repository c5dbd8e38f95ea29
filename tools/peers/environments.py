"""The peers, and an environment for each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PATIENCE_TO_BUILD = 3600  # seconds


class PeerError(Exception):
    """A peer cannot be built or run, or does something else than the workload; one line."""


@dataclass(frozen=True)
class Peer:
    """A library that is measured.

    Attributes:
        program: File beside this one.
        requirements: Pins for pip; none for what runs with the caller's own interpreter.
        python: Oldest Python that will do.
    """

    program: str
    requirements: tuple[str, ...] = ()
    python: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """What the table calls it: its file, less what keeps the file from shadowing the library."""
        return Path(self.program).stem.removesuffix("_round")


TORCH, TORCHVISION, JAX, NUMPY = "torch==2.15.0", "torchvision==0.29.2", "jax==0.10.2", "numpy==2.4.6"
PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("plain_torch.py"),
        Peer("jax_scan.py", (JAX, NUMPY), (3, 11)),
        Peer("fedjax_round.py", ("fedjax==0.0.17", JAX, NUMPY), (3, 11)),
        Peer("flower.py", ("flwr[simulation]==1.41.0", TORCH, NUMPY), (3, 11)),
        Peer("pfl_research.py", ("pfl[pytorch]==0.6.0", TORCH, NUMPY), (3, 11)),
        Peer("blazefl_round.py", ("blazefl[contrib,reproducibility]==2.0.3", TORCH, NUMPY), (3, 12)),
        Peer("fedlab_round.py", ("fedlab==1.3.0", TORCH, TORCHVISION, NUMPY), (3, 11)),
    )
}


def environment(peer: Peer, root: Path) -> Path:
    """Interpreter of the peer's own environment under ``root``, which is built on the first call.

    Raises:
        PeerError: There is no Python for it, or pip cannot install it.
    """
    if not peer.requirements:
        return Path(sys.executable)
    folder = root.absolute() / peer.name
    interpreter, marker = folder / "bin" / "python", folder / "complete.txt"
    wanted = "\n".join(peer.requirements)
    if not (marker.exists() and marker.read_text() == wanted):
        base = base_interpreter(peer.python)
        shutil.rmtree(folder, ignore_errors=True)
        execute([base, "-m", "venv", folder], PATIENCE_TO_BUILD)
        pip: list[str | Path] = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        execute([*pip, *peer.requirements], PATIENCE_TO_BUILD)
        marker.write_text(wanted)
    return interpreter


def base_interpreter(minimum: tuple[int, int] | None) -> Path:
    """This Python, or the oldest one to be found that is new enough.

    Raises:
        PeerError: None is.
    """
    if minimum is None or sys.version_info[:2] >= minimum:
        return Path(sys.executable)
    for minor in range(minimum[1], minimum[1] + 5):
        on_path = shutil.which(f"python{minimum[0]}.{minor}")
        installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{minimum[0]}.{minor}.*/bin/python"))
        for candidate in [Path(on_path), *installed] if on_path else installed:
            # asked, because pyenv puts names on the path that lead nowhere
            if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
                return candidate
    raise PeerError(f"needs Python {minimum[0]}.{minimum[1]} or newer, and there is none on this machine")


def execute(command: Sequence[str | Path], timeout: float, environ: Mapping[str, str] | None = None) -> None:
    """Runs a command in silence.

    Raises:
        PeerError: It fails; with the line of its stderr that says most.
    """
    isolated = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            env=environ or isolated,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"took more than {timeout:.0f} seconds") from None
    if done.returncode:
        raise PeerError(last_line(done.stderr) or f"exit status {done.returncode}")


def last_line(stderr: str) -> str:
    """The last of pip's errors, otherwise the last line there is."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return " ".join((errors or lines or [""])[-1].split())[:300]
