"""Runs on two machines: two network namespaces of this one, with a cable between them and the run folder in common.

``python tools/two_machines.py numbers`` compares runs of both launchers with one of a single process,
``python tools/two_machines.py endings`` kills or stops a process or cuts the cable, and resumes each run, and
``python tools/two_machines.py traffic`` measures what the machines hold and send. Each prints a table for
docs/guides/scale.md. They need Linux and root.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from benchmarks.report import markdown
from jsonargparse import auto_cli

Launcher = Literal["Lightning", "torchrun"]
PFL = ("-m", "pfl_lightning", "fit", "--trainer.accelerator=cpu")
TWO = ("--trainer.devices=1", "--trainer.num_nodes=2")
HOSTS = ("10.77.0.1", "10.77.0.2")
PORT = "29500"
LIMIT = 1200  # seconds, after which what still runs is killed, with code 137
SMALL = (
    *("--model.network=MLP", "--data=Digits", "--data.num_clients=20", "--trainer.precision=64-true"),
    *("--trainer.max_steps=6", "--trainer.val_check_interval=2"),
)
LARGE = (
    *("--model.network=MLP", "--model.network.hidden=[1024,1024]", "--data=Digits", "--data.num_clients=200"),
    *("--data.participation.pool_size=20", "--trainer.max_steps=6", "--trainer.val_check_interval=6"),
)
LOST = f"ip neigh replace {HOSTS[0]} lladdr 02:00:00:00:00:99 dev cable nud permanent"  # a card that is not there
ENDINGS = {  # the machine, and what happens there before the fourth round
    "SIGTERM on the first": (0, "kill -TERM $PPID"),
    "SIGTERM on the second": (1, "kill -TERM $PPID"),
    "SIGKILL on the first": (0, "kill -KILL $PPID"),
    "SIGKILL on the second": (1, "kill -KILL $PPID"),
    "cable cut": (1, "ip link set cable down"),
    "packets to the first lost": (1, LOST),
}


class Before(pl.Callback):
    """Runs a shell command in one process before a round."""

    def __init__(self, rank: int, rounds: int, command: str) -> None:
        self.rank, self.rounds, self.command = rank, rounds, command

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Run it, and leave the time."""
        if (trainer.global_rank, trainer.global_step) == (self.rank, self.rounds):
            Path("happened").touch()
            subprocess.run(self.command, shell=True, check=True)


class Traffic(pl.Callback):
    """Writes the seconds of each round, and the bytes that this machine has sent in it."""

    def on_train_batch_start(self, *_: Any) -> None:
        """Remember the counters."""
        self.before = self.counters()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Write what has been added to them."""
        seconds, sent = (now - before for now, before in zip(self.counters(), self.before, strict=True))
        with Path(f"traffic{trainer.global_rank}").open("a") as file:
            file.write(f"{seconds} {sent}\n")

    def counters(self) -> tuple[float, float]:
        """Seconds, and bytes."""
        return time.perf_counter(), float(Path("/sys/class/net/cable/statistics/tx_bytes").read_text())


@dataclass
class Ended:
    """How the run has ended on a machine.

    Args:
        code: The exit code.
        late: Seconds from the command of ``Before`` to the end; nan without one.
        memory: Most bytes that a process held.
        output: All that was written.
    """

    code: int
    late: float
    memory: float
    output: str

    @property
    def said(self) -> str:
        """The last line of ``pfl`` itself."""
        return next((line for line in reversed(self.output.splitlines()) if line.startswith("pfl: ")), "")


def numbers() -> None:
    """Compare runs on two machines with those of one process."""
    rows = []
    for model in ("FedRep", "Ditto"):
        words = [f"--model={model}", *SMALL]
        with TemporaryDirectory() as folder:
            alone(Path(folder, "one"), words)
            for launcher in ("Lightning", "torchrun"):
                fit(Path(folder, launcher), words, launcher)
                rows.append([model, launcher, *difference(Path(folder, launcher), Path(folder, "one"))])
    print(markdown(["method", "launcher", "largest difference of a weight", "clients.csv"], rows))


def endings(launchers: Sequence[Launcher] = ("Lightning", "torchrun"), names: Sequence[str] = tuple(ENDINGS)) -> None:
    """End runs before their fourth round, and resume them.

    Args:
        launchers: How processes are started.
        names: What happens.
    """
    words = ["--model=FedRep", *SMALL]
    rows = []
    with TemporaryDirectory() as folder:
        alone(Path(folder, "one"), words)
        for launcher in launchers:
            for name in names:
                rank, command = ENDINGS[name]
                place = Path(folder, f"{launcher} {name}")
                ended = fit(place, [*words, *callback(Before, rank=rank, rounds=3, command=command)], launcher)
                fit(place, [*words, "--ckpt_path=last"], launcher)
                apart, _ = difference(place, Path(folder, "one"))
                codes = " and ".join(str(end.code) for end in ended)
                late = " and ".join(f"{end.late:.1f} s" for end in ended)
                rows.append([name, launcher, codes, late, apart])
                print(f"{name}, {launcher}:", *(f"    {end.said}" for end in ended), sep="\n")
    print(markdown(["what", "launcher", "codes", "after", "resumed: largest difference of a weight"], rows))


def traffic(models: Sequence[str] = ("FedRep", "Ditto"), rates: Sequence[str] = ("", "100mbit")) -> None:
    """Measure rounds of large networks: memory, seconds, and what is sent.

    Args:
        models: The methods.
        rates: Bits per second that the cable takes; empty for no limit.
    """
    rows = []
    for model in models:
        for rate in rates:
            words = [f"--model={model}", *LARGE, *callback(Traffic)]
            with TemporaryDirectory() as folder:
                ended = fit(Path(folder), words, "Lightning", rate)
                seconds, sent = rounds_of(Path(folder))
                expected = by_the_formula(Path(folder)) / 1e6
            memory = " and ".join(f"{end.memory / 1e9:.2f} GB" for end in ended)
            spread = f"{min(sent) / 1e6:.1f} to {max(sent) / 1e6:.1f}"
            mean = statistics.mean(sent) / 1e6
            took = f"{min(seconds):.2f} to {max(seconds):.2f} s"
            rows.append([model, rate or "none", memory, took, spread, f"{mean:.1f}", f"{expected:.1f}"])
    print(markdown(["method", "limit", "memory", "a round", "MB sent by both", "mean", "by the formula"], rows))


def rounds_of(folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of each round, those of the slower machine, and bytes that both have sent."""
    files = (folder / f"traffic{number}" for number in range(2))
    rounds = zip(*(file.read_text().splitlines() for file in files), strict=True)
    pairs = [[[float(word) for word in line.split()] for line in lines] for lines in rounds]
    return [max(one[0], other[0]) for one, other in pairs], [one[1] + other[1] for one, other in pairs]


def by_the_formula(folder: Path) -> float:
    """Bytes that two machines send in a round of a run of ``LARGE``."""
    state = checkpoint(folder)
    kept = {name.removeprefix("clients."): tensor for name, tensor in state.items() if name.startswith("clients.")}
    network = {name.removeprefix("network."): tensor for name, tensor in state.items() if name.startswith("network.")}
    is_split = kept.keys() != network.keys()
    shared = sum(tensor.numel() for name, tensor in network.items() if not (is_split and name in kept))
    row = sum(tensor[0].nbytes for tensor in kept.values())
    return 2 * 8 * shared + 20 * row


def difference(folder: Path, other: Path) -> tuple[str, str]:
    """The largest difference of a weight of two runs, and whether the clients' results are the same."""
    state, expected = checkpoint(folder), checkpoint(other)
    apart = max(float((state[name] - tensor).abs().max()) for name, tensor in expected.items())
    tables = {(run_of(place) / "clients.csv").read_text() for place in (folder, other)}
    return f"{apart:.1g}", "equal" if len(tables) == 1 else "different"


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a run."""
    content = torch.load(run_of(folder) / "checkpoints/last.ckpt", weights_only=True)
    state: dict[str, torch.Tensor] = content["state_dict"]
    return state


def run_of(folder: Path) -> Path:
    """The only run in a folder."""
    (run,) = folder.glob("runs/*/version_0")
    return run


def callback(kind: type[pl.Callback], **arguments: object) -> list[str]:
    """Options for a callback of this file."""
    settings = (f"--trainer.callbacks.{name}={value}" for name, value in arguments.items())
    return [f"--trainer.callbacks+=two_machines.{kind.__name__}", *settings]


def alone(folder: Path, words: Sequence[str]) -> None:
    """Run ``pfl fit`` in one process."""
    folder.mkdir()
    subprocess.run([sys.executable, *PFL, *words], cwd=folder, check=True, capture_output=True)


def fit(folder: Path, words: Sequence[str], launcher: Launcher = "Lightning", rate: str = "") -> list[Ended]:
    """Run ``pfl fit`` on two machines, with a process on each.

    Args:
        folder: The working folder of both.
        words: Its options.
        launcher: How it is started.
        rate: Bits per second that the cable takes; empty for no limit.
    """
    folder.mkdir(exist_ok=True)
    with two_machines(rate) as names, ThreadPoolExecutor(2) as both:
        return [*both.map(partial(fit_on, folder, words, launcher, names), range(2))]


def fit_on(folder: Path, words: Sequence[str], launcher: Launcher, names: Sequence[str], number: int) -> Ended:
    """Run ``pfl fit`` on one of the machines, which know each other's names, until it ends."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable]
    if launcher == "torchrun":
        meeting = ("--rdzv_backend=c10d", f"--rdzv_endpoint={HOSTS[0]}:{PORT}")
        command += ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", *meeting]
    else:
        environment |= {"MASTER_ADDR": HOSTS[0], "MASTER_PORT": PORT, "NODE_RANK": str(number)}
    hosts = folder / f"hosts{number}"
    hosts.write_text("".join(f"{address} {name}\n" for address, name in zip(HOSTS, names, strict=True)))
    become = f'hostname {names[number]}; mount --bind {hosts.name} /etc/hosts; exec "$@"'
    inside = ["ip", "netns", "exec", names[number], "unshare", "--uts", "--mount", "sh", "-c", become, "-"]
    output = folder / f"output{number}"
    with output.open("wb") as file:
        everything = ["timeout", "-s", "KILL", str(LIMIT), *inside, *command, *PFL, *TWO, *words]
        process = subprocess.Popen(everything, cwd=folder, env=environment, stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    mark = folder / "happened"
    late = time.time() - mark.stat().st_mtime if mark.exists() else nan
    return Ended(process.returncode, late, used.ru_maxrss * 1024, output.read_text())


@contextmanager
def two_machines(rate: str = "") -> Iterator[list[str]]:
    """Two namespaces with a cable between them, which are removed in the end with all that runs there.

    Args:
        rate: Bits per second that the cable takes; empty for no limit.
    """
    names = [f"machine{number}-{os.getpid()}" for number in range(2)]
    try:
        for name in names:
            shell(f"ip netns add {name}")
        shell(f"ip link add cable netns {names[0]} type veth peer name cable netns {names[1]}")
        for name, address in zip(names, HOSTS, strict=True):
            shell(f"ip -n {name} addr add {address}/24 dev cable")
            for interface in ("lo", "cable"):
                shell(f"ip -n {name} link set {interface} up")
            if rate:
                shell(f"tc -n {name} qdisc add dev cable root tbf rate {rate} burst 256kb latency 50ms")
        yield names
    finally:
        for name in names:
            subprocess.run(f"ip netns pids {name} | xargs -r kill -KILL; ip netns del {name}", shell=True, check=False)


def shell(command: str) -> None:
    """Run a command."""
    subprocess.run(command.split(), check=True)


if __name__ == "__main__":
    if sys.platform != "linux" or os.geteuid():
        sys.exit("two_machines.py: namespaces need Linux and root")
    auto_cli([numbers, endings, traffic])
