"""What every peer's program shares: reading the workload, timing its rounds, handing back what came out.

A program is ``python PROGRAM DATA.npz OUT.npz``. The peers' interpreters run this file, so it needs numpy alone.
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Weights = dict[str, Array]


@dataclass(frozen=True)
class Work:
    """The clients' samples, the first weights and the order of the samples in each round.

    Attributes:
        inputs: float32 [clients, samples, features].
        targets: int64 [clients, samples].
        orders: int64 [rounds, clients, samples].
        weights: ``fc1.weight`` [out, in], ``fc1.bias`` and so on.
    """

    inputs: Array
    targets: Integers
    orders: Integers
    weights: Weights
    lr: float
    momentum: float
    batch_size: int

    @property
    def widths(self) -> list[int]:
        """Features, hidden units and classes."""
        return [self.inputs.shape[2], *(self.weights[f"{name}.bias"].size for name in self.layers)]

    @property
    def layers(self) -> list[str]:
        """Names of the linear layers, first to last."""
        return [name.removesuffix(".bias") for name in self.weights if name.endswith(".bias")]

    def ordered(self, number: int) -> tuple[Array, Integers]:
        """All samples and targets, in the order in which round ``number`` uses them."""
        order = self.orders[number]
        inputs = np.take_along_axis(self.inputs, order[:, :, None], axis=1)
        return inputs, np.take_along_axis(self.targets, order, axis=1)


def read(path: Path) -> Work:
    """The workload of a file."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    weights = {name: arrays.pop(name) for name in list(arrays) if name.startswith("fc")}
    return Work(**{name: array if array.ndim else array.item() for name, array in arrays.items()}, weights=weights)


class Program(ABC):
    """One library's way to do the workload.

    Attributes:
        packages: Distributions whose versions are worth a note.
    """

    packages: tuple[str, ...] = ()

    def prepare(self, number: int) -> None:
        """Before round ``number``, outside of the measured time: for peers that cannot be given an order."""
        del number

    @abstractmethod
    def round(self, number: int) -> None:
        """Broadcast, local training of all clients, aggregation."""

    @abstractmethod
    def weights(self) -> Weights:
        """The weights as they are now."""


def threads() -> int:
    """Threads that the caller wants to be used."""
    return int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))


def run(start: Callable[[Work], Program]) -> None:
    """Does all rounds of the workload on the command line and writes down what came out."""
    data, out = sys.argv[1:]
    work = read(Path(data))
    program = start(work)
    seconds = []
    for number in range(len(work.orders)):
        program.prepare(number)
        began = time.perf_counter()
        program.round(number)
        seconds.append(time.perf_counter() - began)
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    versions |= {name: version(name) for name in program.packages}
    np.savez(out, seconds=seconds, versions=json.dumps(versions), **program.weights())  # type: ignore[arg-type]
