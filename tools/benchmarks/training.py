"""Communication rounds: ours with each backend, beside the loop over clients that everyone writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import get_args

import torch
from plain_methods import CRITERIA, LOOPS, Samples, flat, samples_of
from torch import Tensor, nn

from benchmarks.device import CPU
from benchmarks.timing import Contest, default_float
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning import methods
from pfl_lightning.client import BackendName, LocalTraining
from pfl_lightning.methods import Method
from pfl_lightning.tree import Tree

State = tuple[Tensor, Tensor]  # all numbers that are shared, and all that clients keep


class Plain:
    """The loop over clients that everyone writes; it finds its inputs transformed already.

    Attributes:
        stages: The clients of each round of a turn.
        loop: Takes the rounds.
    """

    def __init__(self, workload: Workload, data: RandomClients) -> None:
        self.stages: list[list[int]] = []
        samples: dict[int, Samples] = {}
        for size in workload.stages:
            data.participation.resize(size)
            examples = data.make_round(0).examples
            self.stages.append(examples.host_ids.tolist())
            samples |= {client: samples_of(examples, row) for row, client in enumerate(self.stages[-1])}
        networks = [own.network for own in method_of(workload, "sequential").architectures]
        network = (workload.module(networks[0]) if len(networks) == 1 else nn.ModuleList(networks)).to(data.device)
        criterion = CRITERIA[workload.task.__name__]
        self.loop = LOOPS[workload.method](network, samples, workload.options, criterion)

    @property
    def samples(self) -> int:
        """Training samples of all rounds of a turn, also of clients who report a loss and then do not train."""
        return sum(self.loop.count(*clients) for clients in self.stages)

    def turn(self) -> object:
        """The rounds that are measured together."""
        for clients in self.stages:
            self.loop.round(clients)
        return None

    def state(self) -> State:
        """The shared tensors, and the kept ones in the order of the clients."""
        network = self.loop.network.state_dict()
        return flat(network[name] for name in self.loop.shared), in_order(self.loop.states)


class Ours:
    """Our round: the data module says who takes part, and the method takes a training step without a trainer.

    Raises:
        PflError: If the backend cannot run the network.
    """

    def __init__(self, workload: Workload, data: RandomClients, backend: BackendName) -> None:
        self.method = method_of(workload, backend).to(data.device)
        self.workload = workload
        self.data = data
        without_trainer(self.method)

    def turn(self) -> object:
        """The rounds that are measured together."""
        for size in self.workload.stages:
            self.data.participation.resize(size)
            self.method.training_step(self.data.make_round(self.method.accounting.clock.rounds), 0)
        return None

    def state(self) -> State:
        """The shared tensors, and the kept ones in the order of the clients."""
        shared = [tensor for name, tensor in self.method.network.state_dict().items() if name in self.method.shared]
        kept = {}
        for own in self.method.architectures:
            rows = own.clients.gather(own.members.to(self.data.device))
            for row, client in enumerate(own.members.tolist()):
                kept[client] = {name: stack[row] for name, stack in rows.items()}
        return flat(shared), in_order(kept)


def in_order(kept: Mapping[int, Tree]) -> Tensor:
    """All numbers that clients keep, in the order of their ids, and then of the names."""
    return flat(tree[name] for _, tree in sorted(kept.items()) for name in sorted(tree))


Maker = Callable[[Workload, RandomClients], Ours]
# ways to run our round, by their names; variants.py adds its own
MAKERS: dict[str, Maker] = {backend: partial(Ours, backend=backend) for backend in get_args(BackendName)}


def method_of(workload: Workload, backend: BackendName) -> Method:
    """The method of a workload, built.

    Raises:
        PflError: If the backend cannot run the network.
    """
    make = getattr(methods, workload.method)
    names = {field.name for field in fields(LocalTraining)}
    local = LocalTraining(**{name: value for name, value in workload.options.items() if name in names})
    options = {name: value for name, value in workload.options.items() if name not in names}
    method: Method = make(network=workload.network, backend=backend, local=local, **options)
    task = workload.task().sized(workload.classes)
    method.build(workload.input_shape, task, len(workload.counts()), input_kind=workload.input_kind)
    return method


def without_trainer(method: Method) -> None:
    """Let a method that is built take training steps without a trainer, which is where logging would go."""
    server = method.configure_optimizers()
    method.optimizers = lambda: server  # type: ignore[method-assign,assignment]
    method.log_round = lambda batch, loss: None  # type: ignore[method-assign]
    method.log = lambda *named: None  # type: ignore[method-assign]


def contestants(workload: Workload, names: Sequence[str], device: torch.device = CPU) -> tuple[Plain, dict[str, Ours]]:
    """The plain loop, and each backend and variant, with the same clients and the same start model."""
    data = RandomClients(workload, device)
    return Plain(workload, data), {name: MAKERS[name](workload, data) for name in names}


def check_same_work(workload: Workload, names: Sequence[str], device: torch.device = CPU) -> None:
    """Take a turn of each in float64: whoever does less than the others must not win.

    Raises:
        RuntimeError: If a backend does not move the shared or the kept numbers as far as the plain loop, within 20 %,
            since the batch orders differ.
    """
    with default_float(torch.float64):
        plain, ours = contestants(workload, names, device)
        start = plain.state()
        expected = moved(plain, start)
        for backend, contestant in ours.items():
            distances = moved(contestant, start)
            for distance, plain_distance in zip(distances, expected, strict=True):
                if not abs(distance - plain_distance) <= 0.2 * plain_distance:
                    moves = f"{distances}, the plain loop by {expected}"
                    raise RuntimeError(f"{backend} moves shared and kept numbers by {moves}")


def moved(contestant: Plain | Ours, start: State) -> list[float]:
    """How far a turn moves the shared and the kept numbers."""
    contestant.turn()
    return [float((after - before).norm()) for after, before in zip(contestant.state(), start, strict=True)]


def contest(workload: Workload, names: Sequence[str], device: torch.device = CPU) -> Contest:
    """The plain loop, and each backend and variant, which have been shown to do the same work."""
    check_same_work(workload, names, device)
    return between(*contestants(workload, names, device), device)


def between(plain: Plain, ours: Mapping[str, Ours], device: torch.device) -> Contest:
    """A contest of the plain loop and others."""
    actions = {"plain": plain.turn, **{name: contestant.turn for name, contestant in ours.items()}}
    return Contest(actions, plain.samples, device=device)
