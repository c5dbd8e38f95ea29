"""Seconds of a communication round: each backend and a plain loop over clients, measured in turns in one process.

``python tools/benchmark.py``, or for instance ``--workloads '[fedavg-mlp, fedrep-mlp]' --repeats 3 --json FILE``.
Before anything is timed, a round of each in float64 shows that all of them do the same work.
"""

import copy
import json as json_format
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import numpy as np
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from pfl_lightning.client import BackendName, Samples
from pfl_lightning.data import FederatedDataModule
from pfl_lightning.data.clients import ClientTable
from pfl_lightning.data.labelled import LabelledData
from pfl_lightning.data.transforms import ImageTransform
from pfl_lightning.methods import FedAvg, FedRep, Method
from pfl_lightning.models import MLP, LeNet5, Network
from pfl_lightning.system import Participation

Record = dict[str, Any]
State = tuple[Tensor, Tensor]  # all numbers that are shared, and all that clients keep
Key = TypeVar("Key")
Name = TypeVar("Name", bound=str)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Workload:
    """What a round consists of; ours and the plain loop take all numbers from here.

    Attributes:
        network: Builds the network.
        input_shape: Shape of an image.
        cohort: Clients that take part in a round.
        samples: Samples of each client.
        head_epochs: FedRep's epochs on the head before its epoch on the body; 0 for one epoch of FedAvg.
        clients: Clients in all; the cohort by default.
    """

    network: Callable[[tuple[int, ...], int], Network]
    input_shape: tuple[int, ...]
    cohort: int
    samples: int
    head_epochs: int = 0
    clients: int | None = None
    batch_size: int = 10
    lr: float = 0.1
    momentum: float = 0.5


MNIST_LIKE, CIFAR_LIKE = (1, 28, 28), (3, 32, 32)
WORKLOADS = {
    "fedavg-mlp": Workload(MLP, MNIST_LIKE, cohort=100, samples=150),
    "fedrep-mlp": Workload(MLP, MNIST_LIKE, cohort=20, samples=150, head_epochs=10),
    "fedavg-lenet": Workload(LeNet5, CIFAR_LIKE, cohort=8, samples=30),
    "fedrep-lenet": Workload(LeNet5, CIFAR_LIKE, cohort=8, samples=30, head_epochs=10),
}
POPULATION = Workload(MLP, MNIST_LIKE, cohort=100, samples=10, head_epochs=10)
POPULATIONS = (100, 100_000)
ROUNDS_IN_PROCESS = 3  # timed by each fresh process of the population workload


class RandomImages(FederatedDataModule):
    """Random uint8 images, as many as a cohort holds: populations of all sizes share one table of samples."""

    num_classes = 10

    def __init__(self, workload: Workload) -> None:
        clients = workload.clients or workload.cohort
        super().__init__(num_clients=clients, participation=Participation(workload.cohort), val_fraction=0.0)
        self.workload = workload
        # images are dealt out in order, over and over until every client has its samples
        parts = np.resize(np.arange(workload.cohort * workload.samples), (clients, workload.samples))
        images = self.load()[0]
        samples = Samples(images.inputs, images.targets, self.transform())
        self.tables = {"train": ClientTable(samples, list(parts))}

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Images to train on, and none to test on."""
        size, source = self.workload.cohort * self.workload.samples, torch.Generator().manual_seed(0)
        images = torch.randint(256, (size, *self.workload.input_shape), dtype=torch.uint8, generator=source)
        targets = torch.randint(self.num_classes, (size,), generator=source)
        return LabelledData(images, targets), LabelledData(images[:0], targets[:0])

    def transform(self) -> ImageTransform:
        """To the range -1 .. 1."""
        channels = self.workload.input_shape[0]
        return ImageTransform([0.5] * channels, [0.5] * channels)


class PlainLoop:
    """One client after another, the way it is usually written; it finds its images transformed already."""

    def __init__(self, workload: Workload, network: nn.Module, data: RandomImages) -> None:
        self.workload, self.network = workload, copy.deepcopy(network)
        examples = data.make_round(0).examples
        every = torch.arange(examples.longest).expand(len(examples), -1)
        held = zip(examples.gather(every), examples.targets(every), strict=True)
        self.data = dict(zip(examples.ids.tolist(), held, strict=True))
        start = network.state_dict()
        self.head = list(start)[-2:] if workload.head_epochs else []  # weight and bias of the last layer
        self.body = [name for name in start if name not in self.head]
        self.heads = {client: {name: start[name].clone() for name in self.head} for client in self.data}

    def round(self) -> None:
        """One communication round of FedAvg, or of FedRep where there are head epochs."""
        mean = {name: torch.zeros_like(tensor) for name, tensor in self.network.state_dict().items()}
        for client, (inputs, targets) in self.data.items():
            model = copy.deepcopy(self.network)
            model.load_state_dict({**model.state_dict(), **self.heads[client]})
            if self.head:
                self.train(model, self.head, self.workload.head_epochs, inputs, targets)
            self.train(model, self.body, 1, inputs, targets)
            trained = model.state_dict()
            self.heads[client] = {name: trained[name] for name in self.head}
            for name in self.body:
                mean[name] += trained[name] / len(self.data)
        self.network.load_state_dict(mean)

    def train(self, model: nn.Module, moves: list[str], epochs: int, inputs: Tensor, targets: Tensor) -> None:
        """Some epochs at one client, in which only the named parameters move."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in moves)
        moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = SGD(moving, lr=self.workload.lr, momentum=self.workload.momentum)
        for _ in range(epochs):
            for batch in torch.randperm(len(targets)).split(self.workload.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()

    def state(self) -> State:
        """The body, and the heads in the order of the clients."""
        shared, heads = self.network.state_dict(), [self.heads[client] for client in sorted(self.heads)]
        kept = [torch.stack([head[name] for head in heads]) for name in self.head]
        return flat([shared[name] for name in self.body]), flat(kept)


class Ours:
    """Our round: the data module says who takes part, and the method takes a training step without a trainer."""

    def __init__(self, workload: Workload, data: RandomImages, backend: BackendName) -> None:
        settings = {name: getattr(workload, name) for name in ("network", "batch_size", "lr", "momentum")}
        settings.update(backend=backend, weight_decay=0.0)
        head_epochs = workload.head_epochs
        self.method: Method = FedRep(head_epochs=head_epochs, **settings) if head_epochs else FedAvg(**settings)
        self.method.build(workload.input_shape, data.num_classes, data.num_clients)
        self.data = data
        server = self.method.configure_optimizers()
        self.method.optimizers = lambda: server  # type: ignore[method-assign,assignment]
        self.method.log_round = lambda loss, cohort_size: None  # type: ignore[method-assign]

    def round(self) -> None:
        """One communication round."""
        self.method.training_step(self.data.make_round(self.method.clock.rounds), 0)

    def state(self) -> State:
        """The shared tensors, and the kept ones in the order of the clients."""
        shared = [tensor for name, tensor in self.method.network.state_dict().items() if name in self.method.shared]
        return flat(shared), flat(list(self.method.clients.gather(torch.arange(self.data.num_clients)).values()))

    def client_updates(self) -> Tensor:
        """How far each client would move in the next round, ``[cohort]``."""
        cohort = self.data.make_round(self.method.clock.rounds).examples
        received = self.method.received(cohort.ids)
        trained = self.method.local(cohort, received, ("updates",))[0].own
        start = received.owned(trained, len(cohort)).own
        return torch.cat([(trained[name] - start[name]).flatten(1) for name in start], dim=1).norm(dim=1)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of some tensors, copied in a row."""
    return torch.cat([torch.zeros(0), *(tensor.detach().flatten() for tensor in tensors)])


def contestants(workload: Workload, backends: Sequence[BackendName]) -> tuple[PlainLoop, dict[BackendName, Ours]]:
    """The plain loop and each backend, with the same clients and the same start model."""
    data = RandomImages(workload)
    start = Ours(workload, data, "auto").method.network
    return PlainLoop(workload, start, data), {backend: Ours(workload, data, backend) for backend in backends}


def check_same_work(workload: Workload, backends: Sequence[BackendName]) -> None:
    """Run a round of each in float64: whoever does less than the others must not win.

    Raises:
        RuntimeError: If a backend does not move the shared or the kept numbers as far as the plain loop (within 20 %,
            since the batch orders differ), or a client less than half as far as the average client.
    """
    torch.set_default_dtype(torch.float64)
    try:
        plain, ours = contestants(workload, backends)
        start = plain.state()
        expected = moved(plain, start)
        for backend, contestant in ours.items():
            clients, found = contestant.client_updates(), moved(contestant, start)
            if not clients.min() > clients.mean() / 2:
                raise RuntimeError(f"{backend} moves a client by {clients.min():.3g}, the average {clients.mean():.3g}")
            if not all(abs(one - other) <= 0.2 * other for one, other in zip(found, expected, strict=True)):
                raise RuntimeError(f"{backend} moves shared and kept numbers by {found}, the plain loop by {expected}")
    finally:
        torch.set_default_dtype(torch.float32)


def moved(contestant: PlainLoop | Ours, start: State) -> list[float]:
    """How far a round moves the shared and the kept numbers."""
    contestant.round()
    return [float((after - before).norm()) for after, before in zip(contestant.state(), start, strict=True)]


def in_turns(actions: Mapping[Key, Callable[[], Result]], repeats: int) -> dict[Key, list[Result]]:
    """Results of each action, carried out A B C A B C ..., so that all meet the same disturbances."""
    results: dict[Key, list[Result]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            results[name].append(action())
    return results


def seconds_of(action: Callable[[], None]) -> float:
    """Wall-clock seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(name: str, workload: Workload, backends: Sequence[BackendName], repeats: int) -> list[Record]:
    """One record for the plain loop and for each backend: the seconds of their rounds."""
    check_same_work(workload, backends)
    plain, ours = contestants(workload, backends)
    rounds: dict[str, Callable[[], None]] = {"plain": plain.round}
    rounds.update({backend: contestant.round for backend, contestant in ours.items()})
    actions = {backend: partial(seconds_of, one) for backend, one in rounds.items()}
    in_turns(actions, 1)  # warms up
    seconds = in_turns(actions, repeats)
    return [record(name, backend, times, seconds["plain"]) for backend, times in seconds.items()]


def measure_population(workload: Workload, sizes: Sequence[int], repeats: int, threads: int) -> list[Record]:
    """One record for each number of clients in all: the seconds of a round, and the memory of a fresh process."""
    check_same_work(workload, ["auto"])
    actions = {size: partial(in_fresh_process, replace(workload, clients=size), threads) for size in sizes}
    return [
        record(f"population-{size}", "auto", [run[0] for run in runs]) | {"peak_mebibytes": max(run[1] for run in runs)}
        for size, runs in in_turns(actions, repeats).items()
    ]


def record(workload: str, backend: str, seconds: list[float], plain: list[float] | None = None) -> Record:
    """One measurement; the ratio is the median over the turns of ours / plain."""
    return {
        "workload": workload,
        "backend": backend,
        "seconds": statistics.median(seconds),
        "ratio_to_plain": statistics.median(np.divide(seconds, plain).tolist()) if plain else None,
        "spread": [min(seconds), max(seconds)],
    }


def in_fresh_process(workload: Workload, threads: int) -> tuple[float, float]:
    """``population_rounds`` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(population_rounds, workload, threads).result()


def population_rounds(workload: Workload, threads: int) -> tuple[float, float]:
    """Seconds of the median round after the first one, and the peak memory of this process in mebibytes."""
    torch.set_num_threads(threads)
    ours = Ours(workload, RandomImages(workload), "auto")
    ours.round()
    seconds = statistics.median(seconds_of(ours.round) for _ in range(ROUNDS_IN_PROCESS))
    return seconds, peak_mebibytes()


def peak_mebibytes() -> float:
    """The most memory that this process has held; Linux's ``ru_maxrss`` would count what its parent held as well."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1024)


def table(records: Sequence[Record]) -> str:
    """The records as a Markdown table."""
    lines = ["| workload | backend | seconds | ratio to plain | spread | peak MiB |", "|---|---|---|---|---|---|"]
    for row in records:
        ratio = "" if row["ratio_to_plain"] is None else f"{row['ratio_to_plain']:.2f}"
        spread = " .. ".join(f"{seconds:.3f}" for seconds in row["spread"])
        peak = f"{row['peak_mebibytes']:.0f}" if "peak_mebibytes" in row else ""
        lines.append(f"| {row['workload']} | {row['backend']} | {row['seconds']:.3f} | {ratio} | {spread} | {peak} |")
    return "\n".join(lines)


def choose(key: str, names: list[str] | str | None, allowed: Sequence[Name]) -> list[Name]:
    """The names that were asked for; all of them when None."""
    wanted = [names] if isinstance(names, str) else allowed if names is None else names
    for name in wanted:
        if name not in allowed:
            refuse(f"{key}: {name} is not possible; allowed: {', '.join(allowed)}")
    return [name for name in allowed if name in wanted]


def refuse(message: str) -> NoReturn:
    """Answer a wrong command line with one line."""
    print(f"benchmark: error: {message}", file=sys.stderr)
    raise SystemExit(2)


def main(
    workloads: list[str] | str | None = None,
    backends: list[str] | str | None = None,
    repeats: PositiveInt = 5,
    threads: PositiveInt | None = None,
    json: Path | None = None,
) -> None:
    """Time communication rounds of every backend against a plain loop over clients.

    Args:
        workloads: One or more of fedavg-mlp, fedrep-mlp, fedavg-lenet, fedrep-lenet, population; all by default.
        backends: One or more of auto, sequential, batched; all by default. The population always runs with auto.
        repeats: Measured rounds of each; for the population fresh processes.
        threads: Threads that torch may use; its own choice by default.
        json: File to write the measurements to.
    """
    chosen = choose("workloads", workloads, [*WORKLOADS, "population"])
    engines = choose("backends", backends, get_args(BackendName))
    if json and not json.parent.is_dir():
        refuse(f"json: {json} is not possible; allowed: a file in an existing folder")
    torch.set_num_threads(threads or torch.get_num_threads())
    records: list[Record] = []
    for name in chosen:
        print(f"{name}: {repeats} repeats, {torch.get_num_threads()} threads", file=sys.stderr)
        if name == "population":
            records += measure_population(POPULATION, POPULATIONS, repeats, torch.get_num_threads())
        else:
            records += measure(name, WORKLOADS[name], engines, repeats)
    print(table(records))
    if json:
        json.write_text(json_format.dumps(records, indent=2) + "\n")


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
