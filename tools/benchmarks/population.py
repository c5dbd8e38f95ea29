"""Rounds in ever larger populations: what they take, and how much memory."""

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.device import CPU, MEBIBYTE, name_of, peak_mebibytes
from benchmarks.timing import Record, in_turns, record, seconds_of, warm_ups
from benchmarks.training import Ours, check_same_work
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.processes import keep_freed_memory

ROUNDS_IN_PROCESS = 3  # timed by each fresh process


class Measurement(NamedTuple):
    """What a fresh process found out.

    Attributes:
        seconds: The median round after the first one.
        peak: The most memory that the process has held, on a GPU that of the GPU, in mebibytes.
        bank: What the clients keep, in mebibytes.
    """

    seconds: float
    peak: float
    bank: float


def measure_population(
    name: str, workloads: Mapping[int, Workload], repeats: int, threads: int, device: torch.device = CPU
) -> list[Record]:
    """One record for each number of clients in all: the seconds of a round, and the memory of a fresh process.

    Args:
        name: Name of the measurement.
        workloads: What a turn consists of, by the number of clients in all.
        repeats: Fresh processes for each.
        threads: Threads of each.
        device: Where the rounds are taken.
    """
    smallest = min(workloads)
    check_same_work(replace(workloads[smallest], clients=None), ["auto"], device)
    actions = {size: partial(in_fresh_process, workload, threads, device) for size, workload in workloads.items()}
    runs = in_turns(actions, repeats, name)
    records = [population_record(f"{name}-{size}", of_size, runs[smallest]) for size, of_size in runs.items()]
    return [row | {"device": name_of(device)} for row in records]


def population_record(name: str, runs: Sequence[Measurement], smallest: Sequence[Measurement]) -> Record:
    """What one size takes; the ratio is the median over the turns of its seconds / those of the smallest."""
    seconds = [run.seconds for run in runs]
    peak = statistics.median(run.peak for run in runs)
    smallest_peak = statistics.median(run.peak for run in smallest)
    return record(name, "auto", seconds) | {
        "ratio_to_smallest": float(np.median(np.divide(seconds, [run.seconds for run in smallest]))),
        "peak_mebibytes": peak,
        "more_than_smallest_mebibytes": peak - smallest_peak,
        "bank_mebibytes": runs[0].bank,
        "bank_more_than_smallest_mebibytes": runs[0].bank - smallest[0].bank,
    }


def in_fresh_process(workload: Workload, threads: int, device: torch.device) -> Measurement:
    """``population_rounds`` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(population_rounds, workload, threads, device).result()


def population_rounds(workload: Workload, threads: int, device: torch.device) -> Measurement:
    """Take some rounds."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    ours = Ours(workload, RandomClients(workload, device), "auto")
    in_turns({"ours": ours.turn}, warm_ups(device))
    seconds = statistics.median(seconds_of(ours.turn, device) for _ in range(ROUNDS_IN_PROCESS))
    bank = sum(rows.nbytes for rows in ours.method.clients.shard.own.values())
    return Measurement(seconds, peak_mebibytes(device), bank / MEBIBYTE)
