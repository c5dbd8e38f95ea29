"""Rounds in ever larger populations: what they take, and how much memory."""

import resource
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.timing import Record, in_turns, record, seconds_of
from benchmarks.training import Ours, check_same_work
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.memory import keep_freed_memory

ROUNDS_IN_PROCESS = 3  # timed by each fresh process
MEBIBYTE = 1 << 20


class Measurement(NamedTuple):
    """What a fresh process found out.

    Attributes:
        seconds: The median round after the first one.
        peak: The most memory that the process has held, in mebibytes.
        bank: What the clients keep, in mebibytes.
    """

    seconds: float
    peak: float
    bank: float


def measure_population(name: str, workloads: Mapping[int, Workload], repeats: int, threads: int) -> list[Record]:
    """One record for each number of clients in all: the seconds of a round, and the memory of a fresh process.

    Args:
        name: Name of the measurement.
        workloads: What a turn consists of, by the number of clients in all.
        repeats: Fresh processes for each.
        threads: Threads of each.
    """
    smallest = min(workloads)
    check_same_work(replace(workloads[smallest], clients=None), ["auto"])
    actions = {size: partial(in_fresh_process, workload, threads) for size, workload in workloads.items()}
    runs = in_turns(actions, repeats, name)
    return [population_record(f"{name}-{size}", of_size, runs[smallest]) for size, of_size in runs.items()]


def population_record(name: str, runs: Sequence[Measurement], smallest: Sequence[Measurement]) -> Record:
    """What one size takes; the ratio is the median over the turns of its seconds / those of the smallest."""
    seconds = [run.seconds for run in runs]
    peak, least = (statistics.median(run.peak for run in of_size) for of_size in (runs, smallest))
    return record(name, "auto", seconds) | {
        "ratio_to_smallest": float(np.median(np.divide(seconds, [run.seconds for run in smallest]))),
        "peak_mebibytes": peak,
        "more_than_smallest_mebibytes": peak - least,
        "bank_mebibytes": runs[0].bank,
        "bank_more_than_smallest_mebibytes": runs[0].bank - smallest[0].bank,
    }


def in_fresh_process(workload: Workload, threads: int) -> Measurement:
    """``population_rounds`` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(population_rounds, workload, threads).result()


def population_rounds(workload: Workload, threads: int) -> Measurement:
    """Take some rounds."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    ours = Ours(workload, RandomClients(workload), "auto")
    ours.turn()
    seconds = statistics.median(seconds_of(ours.turn) for _ in range(ROUNDS_IN_PROCESS))
    bank = sum(rows.nbytes for rows in ours.method.clients.buffers())
    return Measurement(seconds, peak_mebibytes(), bank / MEBIBYTE)


def peak_mebibytes() -> float:
    """The most memory that this process has held; Linux's ``ru_maxrss`` would count what its parent held as well."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (MEBIBYTE if sys.platform == "darwin" else 1024)
