"""Seconds of several actions, measured in turns in one process."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from rich.progress import Progress
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.device import CPU, finish, forget_peak, name_of, peak_mebibytes
from benchmarks.waits import Action, waits
from pfl_lightning.data.reading import bar_options

Record = dict[str, Any]
Key = TypeVar("Key")
Result = TypeVar("Result")

PEAK = "peak"
PEAK_SIZE = 2048  # rows and columns of the matrices whose product shows what the machine can do


@dataclass(frozen=True)
class Contest:
    """Actions that do the same work.

    Attributes:
        actions: By name; the plain loop comes first.
        samples: Samples that each of them looks at, once per epoch.
        dense: Whether nearly all of the work is products of matrices, so that the share of the peak says something.
        device: Where they do it.
    """

    actions: Mapping[str, Action]
    samples: int
    dense: bool = True
    device: torch.device = CPU


def measure(name: str, contest: Contest, repeats: int) -> list[Record]:
    """One record for each action: its seconds, how much of the machine's peak it makes use of, and its memory."""
    device = contest.device
    matrix = torch.rand(PEAK_SIZE, PEAK_SIZE, device=device)
    product = partial(torch.mm, matrix, matrix, out=torch.empty_like(matrix))
    actions: dict[str, Action] = {**contest.actions, PEAK: product}
    nominal = operations(actions["plain"])
    in_turns(actions, warm_ups(device))
    seconds = in_turns({key: partial(seconds_of, action, device) for key, action in actions.items()}, repeats, name)
    rates = 2 * PEAK_SIZE**3 / np.array(seconds.pop(PEAK))  # floating-point operations a second, in each turn
    records = []
    for backend, times in seconds.items():
        share = float(np.median(nominal / np.array(times) / rates)) if contest.dense else None
        facts = {"samples": contest.samples, "device": name_of(device), "peak_share": share}
        facts |= {"peak_gflops": float(np.median(rates)) / 1e9}
        if device.type != "cpu":
            facts["waits"] = dict(waits(actions[backend], device))
        if forget_peak(device):
            held = peak_mebibytes(device)
            actions[backend]()
            facts["peak_mebibytes"] = peak_mebibytes(device) - held
        records.append(record(name, backend, times, seconds["plain"]) | facts)
    return records


def warm_ups(device: torch.device) -> int:
    """Turns that are not counted: on a GPU several, in which libraries are loaded and kernels chosen or compiled."""
    return 1 if device.type == "cpu" else 3


def record(workload: str, backend: str, seconds: list[float], plain: list[float] | None = None) -> Record:
    """One measurement; the ratio is the median over the turns of ours / plain."""
    return {
        "workload": workload,
        "backend": backend,
        "seconds": statistics.median(seconds),
        "ratio_to_plain": statistics.median(np.divide(seconds, plain).tolist()) if plain else None,
        "spread": [min(seconds), max(seconds)],
    }


def operations(action: Action) -> int:
    """Floating-point operations of an action's matrix products and convolutions; a product and a sum are two."""
    counter = FlopCounterMode(display=False)
    with counter:
        action()
    return counter.get_total_flops()


def in_turns(
    actions: Mapping[Key, Callable[[], Result]], repeats: int, label: str | None = None
) -> dict[Key, list[Result]]:
    """Results of each action, carried out A B C A B C ..., so that all meet the same disturbances.

    Args:
        actions: What to do.
        repeats: How often.
        label: Name of the bar on a terminal; None for no bar.
    """
    results: dict[Key, list[Result]] = {name: [] for name in actions}
    options = bar_options()
    options["disable"] |= label is None
    # drawn between the actions alone, so that it takes no time from them
    with Progress(auto_refresh=False, transient=True, **options) as bar:
        task = bar.add_task(label or "", total=repeats * len(actions))
        for _ in range(repeats):
            for name, action in actions.items():
                bar.refresh()
                results[name].append(action())
                bar.advance(task)
    return results


def seconds_of(action: Action, device: torch.device = CPU) -> float:
    """Wall-clock seconds that an action takes, until the device is done."""
    finish(device)
    start = time.perf_counter()
    action()
    finish(device)
    return time.perf_counter() - start


@contextmanager
def default_float(dtype: torch.dtype) -> Iterator[None]:
    """Compute in another type of numbers for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
