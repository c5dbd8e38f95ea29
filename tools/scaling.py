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
from benchmarks.report import markdown
from benchmarks.training import Ours
from benchmarks.workloads import WORKLOADS, RandomClients
from jsonargparse import auto_cli

from pfl_lightning import processes
from pfl_lightning.bounds import PositiveInt
from pfl_lightning.federation.client_states import ClientStates
from pfl_lightning.models import LeNet5
from pfl_lightning.processes import keep_freed_memory

Result = TypeVar("Result")


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
    if unknown := [name for name in workloads if name not in WORKLOADS]:
        sys.exit(f"scaling: workloads: {unknown[0]} is not possible; allowed: {', '.join(WORKLOADS)}")
    rows = []
    for name in workloads:
        seconds = [in_processes(count, partial(seconds_of_a_round, name, repeats)) for count in counts]
        rows.append([name, *(f"{median:.3g} s" for median in seconds), f"{seconds[0] / seconds[-1]:.2f}"])
    settings = (f"{count} x {threads_of(count)} threads" for count in counts)
    print(markdown(["workload", *settings, "times faster"], rows))


def seconds_of_a_round(name: str, repeats: int) -> float:
    """Median seconds of a round of a workload, without a trainer."""
    keep_freed_memory()
    ours = Ours(WORKLOADS[name], RandomClients(WORKLOADS[name]), "auto")
    ours.turn()
    return statistics.median(seconds_of(ours.turn) for _ in range(repeats))


def states(clients: PositiveInt = 20_000, cohort: PositiveInt = 100, counts: Sequence[PositiveInt] = (1, 2, 4)) -> None:
    """Measure the states of classical LeNets that have all changed: memory, and moving the rows of a cohort.

    Args:
        clients: Number of clients.
        cohort: Clients of a round.
        counts: Numbers of processes.
    """
    if cohort > clients:
        sys.exit(f"scaling: cohort must be 1 to {clients}, the clients, got {cohort}")
    rows = []
    for count in counts:
        memory, seconds, sent = in_processes(count, partial(use_of_states, clients, cohort))
        rows.append([str(count), f"{memory / 1e9:.2f} GB", f"{seconds:.3g} s", f"{sent / 1e6:.1f} MB"])
    print(markdown(["processes", "memory of a process", "there and back", "sent by all"], rows))


def use_of_states(clients: int, cohort: int) -> tuple[float, float, float]:
    """Bytes that a process needs for them, seconds to move the rows of a cohort there and back, bytes sent."""
    network = LeNet5((3, 32, 32), 10, channels=(6, 16), hidden=(120, 84))
    before = resident_bytes()
    bank = ClientStates({name: tensor.expand(clients, *tensor.shape) for name, tensor in network.state_dict().items()})
    bank.shard.fill()
    memory = resident_bytes() - before
    ids = torch.randperm(clients, generator=torch.Generator().manual_seed(0))[:cohort]
    shares = [ids[places] for places in processes.split_by_cost(torch.ones(cohort))]

    def move() -> None:
        with bank.placed(shares, changes=True):
            bank.gather(shares[processes.rank()])

    move()
    sent = sent_bytes()
    seconds = seconds_of(move)
    return memory, seconds, sent_bytes() - sent


def in_processes(count: int, work: Callable[[], Result]) -> Result:
    """Do some work in several processes at once; the result is that of the first."""
    results: Any = mp.get_context("spawn").SimpleQueue()
    with TemporaryDirectory() as folder:
        arguments = (count, f"file://{folder}/meet", work, results)
        mp.spawn(run_process, arguments, nprocs=count)  # type: ignore[attr-defined]
    result: Result = results.get()
    return result


def run_process(rank: int, count: int, place: str, work: Callable[[], object], results: "Queue[object]") -> None:
    """Do the work as one of several processes."""
    torch.set_num_threads(threads_of(count))
    dist.init_process_group("gloo", place, rank=rank, world_size=count)
    result = work()
    dist.barrier()
    if rank == 0:
        results.put(result)
    dist.destroy_process_group()


def threads_of(count: int) -> int:
    """Threads of each of several processes."""
    return max(1, (os.cpu_count() or 1) // count)


def seconds_of(action: Callable[[], object]) -> float:
    """Wall-clock seconds that all processes need for an action."""
    dist.barrier()
    begin = time.perf_counter()
    action()
    dist.barrier()
    return time.perf_counter() - begin


def resident_bytes() -> float:
    """Memory of this process."""
    return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sent_bytes() -> float:
    """What this machine has sent to itself."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    loopback = next(line for line in lines if line.strip().startswith("lo:"))
    return float(loopback.split()[9])


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("scaling.py: memory and messages are read from /proc; allowed: Linux")
    auto_cli([rounds, states])
