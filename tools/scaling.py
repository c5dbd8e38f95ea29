"""What several processes on the cores of one machine gain, and what each of them holds and sends.

``python tools/scaling.py rounds`` measures rounds of the benchmark's workloads with one process that uses all cores as
threads, and with as many processes of fewer threads; ``python tools/scaling.py states`` the memory and the messages
of client states that are spread over processes. Both print a table for docs/guides/scale.md.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from benchmarks.training import Ours
from benchmarks.workloads import CIFAR_LIKE, WORKLOADS, RandomClients
from jsonargparse import auto_cli

from pfl_lightning import processes
from pfl_lightning.bounds import PositiveInt
from pfl_lightning.federation.client_states import ClientStates
from pfl_lightning.memory import keep_freed_memory
from pfl_lightning.models import LeNet5

Result = TypeVar("Result")
LOOPBACK = Path("/proc/net/dev")


def rounds(
    workloads: Sequence[str] = ("fedavg-mlp", "ragged-mlp", "fedavg-lenet", "fedavg-resnet18", "fedavg-gru"),
    counts: Sequence[PositiveInt] = (1, 2),
    repeats: PositiveInt = 5,
) -> None:
    """Measure rounds with several numbers of processes, which share the cores.

    Args:
        workloads: Names of workloads of ``tools/benchmark.py``.
        counts: Numbers of processes; the last one is compared with the first.
        repeats: Rounds of which the median counts, after one that does not.
    """
    if wrong := [name for name in workloads if name not in WORKLOADS]:
        sys.exit(f"scaling: workloads: {wrong[0]} is not possible; allowed: {', '.join(WORKLOADS)}")
    columns = ["workload", *(f"{count} x {_threads(count)} threads" for count in counts), "times faster"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name in workloads:
        seconds = [together(count, partial(seconds_of_a_round, name, repeats)) for count in counts]
        row = " | ".join(f"{each:.3g} s" for each in seconds)
        print(f"| {name} | {row} | {seconds[0] / seconds[-1]:.2f} |", flush=True)


def seconds_of_a_round(name: str, repeats: int) -> float:
    """Median seconds of a round of a workload, without a trainer."""
    keep_freed_memory()
    ours = Ours(WORKLOADS[name], RandomClients(WORKLOADS[name]), "auto")
    ours.turn()
    return statistics.median(_timed(ours.turn) for _ in range(repeats))


def states(clients: PositiveInt = 20_000, cohort: PositiveInt = 100, counts: Sequence[PositiveInt] = (1, 2, 4)) -> None:
    """Measure the states of classical LeNets that have all changed: memory, and moving the rows of a cohort.

    Args:
        clients: Number of clients.
        cohort: Clients of a round.
        counts: Numbers of processes.
    """
    if cohort > clients:
        sys.exit(f"scaling: cohort: {cohort} is not possible; allowed: 1 to {clients}, the clients")
    print("| processes | memory of a process | there and back | sent by all |\n|---|---|---|---|")
    for count in counts:
        memory, seconds, sent = together(count, partial(use_of_states, clients, cohort))
        print(f"| {count} | {memory / 1e9:.2f} GB | {seconds:.3g} s | {sent / 1e6:.1f} MB |", flush=True)


def use_of_states(clients: int, cohort: int) -> tuple[float, float, float]:
    """Bytes that a process needs for them, seconds to move the rows of a cohort there and back, bytes sent."""
    network, before = LeNet5(CIFAR_LIKE, 10, channels=(6, 16), hidden=(120, 84)), _resident()
    held = ClientStates({name: tensor.expand(clients, *tensor.shape) for name, tensor in network.state_dict().items()})
    held.shard.fill()
    memory, ids = _resident() - before, torch.randperm(clients, generator=torch.Generator().manual_seed(0))[:cohort]
    shares = [ids[places] for places in processes.shares(torch.ones(cohort))]

    def place() -> None:
        with held.placed(shares, changes=True):
            held.gather(shares[processes.rank()])

    place()
    sent = _sent()
    seconds = _timed(place)
    return memory, seconds, _sent() - sent


def together(count: int, work: Callable[[], Result]) -> Result:
    """Do some work in several processes at once; the result is that of the first."""
    results: Any = mp.get_context("spawn").SimpleQueue()
    with TemporaryDirectory() as folder:
        mp.spawn(_one, (count, f"file://{folder}/meet", work, results), nprocs=count)  # type: ignore[attr-defined]
    result: Result = results.get()
    return result


def _one(rank: int, count: int, place: str, work: Callable[[], object], results: "Queue[object]") -> None:
    torch.set_num_threads(_threads(count))
    dist.init_process_group("gloo", place, rank=rank, world_size=count)
    result = work()
    dist.barrier()
    if rank == 0:
        results.put(result)
    dist.destroy_process_group()


def _threads(count: int) -> int:
    return max(1, (os.cpu_count() or 1) // count)


def _timed(action: Callable[[], object]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    action()
    dist.barrier()
    return time.perf_counter() - begin


def _resident() -> float:
    """Bytes of this process that are in memory."""
    return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _sent() -> float:
    """Bytes that this machine has sent to itself."""
    line = next(line for line in LOOPBACK.read_text().splitlines() if line.strip().startswith("lo:"))
    return float(line.split()[9])


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("scaling.py: memory and messages are read from /proc; allowed: Linux")
    auto_cli([rounds, states])
