"""Communication rounds: ours with each backend, beside the loop over clients that everyone writes."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import torch
from plain_methods import LOOPS, Samples, flat, samples_of
from torch import Tensor

from benchmarks.device import CPU
from benchmarks.timing import Contest, default_float
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning import methods
from pfl_lightning.client import BackendName, Examples
from pfl_lightning.methods import Method
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree

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
        network = workload.module(method_of(workload, "sequential").network).to(data.device)
        self.loop = LOOPS[workload.method](network, samples, workload.options)

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
        rows = [state for _, state in sorted(self.loop.states.items())]
        stacks = [torch.stack([row[name] for row in rows]) for name in rows[0]]
        return flat(network[name] for name in self.loop.shared), flat(stacks)

    def watch(self) -> dict[int, float]:
        """Note from now on how far each client moves; what is noted is in the result."""
        travelled: dict[int, float] = defaultdict(float)
        usual = self.loop.local_update

        def local_update(client: int) -> Tree:
            start = {**self.loop.network.state_dict(), **self.loop.states[client]}
            trained = usual(client)
            travelled[client] += float(flat(trained[name] - start[name] for name in start if name in trained).norm())
            return trained

        self.loop.local_update = local_update  # type: ignore[method-assign]
        return travelled


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
        clients = torch.arange(self.data.num_clients, device=self.data.device)
        shared = [tensor for name, tensor in self.method.network.state_dict().items() if name in self.method.shared]
        return flat(shared), flat(self.method.clients.gather(clients).values())

    def watch(self) -> dict[int, float]:
        """Note from now on how far each client moves; what is noted is in the result."""
        travelled: dict[int, float] = defaultdict(float)
        usual = self.method.local_update

        def local_update(cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
            trained, losses = usual(cohort, received, key)
            start = {**received.shared, **received.own}
            for row, client in enumerate(cohort.host_ids.tolist()):
                before = {n: start[n][row] if n in received.own else start[n] for n in trained.own if n in start}
                travelled[client] += float(flat(trained.own[n][row] - before[n] for n in before).norm())
            return trained, losses

        self.method.local_update = local_update  # type: ignore[method-assign]
        return travelled


Maker = Callable[[Workload, RandomClients], Ours]
# ways to run our round, by their names; variants.py adds its own
MAKERS: dict[str, Maker] = {backend: partial(Ours, backend=backend) for backend in get_args(BackendName)}


def method_of(workload: Workload, backend: BackendName) -> Method:
    """The method of a workload, built.

    Raises:
        PflError: If the backend cannot run the network.
    """
    make = getattr(methods, workload.method)
    method: Method = make(network=workload.network, backend=backend, **workload.options)
    shape = workload.input_shape
    method.build(shape, workload.classes, len(workload.counts()), input_kind=workload.input_kind)
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
        RuntimeError: If a backend trains other clients than the plain loop, does not move the shared or the kept
            numbers as far (within 20 %, since the batch orders differ), or a client less than half as far.
    """
    with default_float(torch.float64):
        plain, ours = contestants(workload, names, device)
        start = plain.state()
        expected, clients = moved(plain, start)
        for backend, contestant in ours.items():
            distances, travelled = moved(contestant, start)
            if difference := travelled.keys() ^ clients.keys():
                raise RuntimeError(f"{backend} or the plain loop trains clients that the other does not: {difference}")
            for client, distance in clients.items():
                if not travelled[client] > distance / 2:
                    travel = f"{travelled[client]:.3g}, the plain loop by {distance:.3g}"
                    raise RuntimeError(f"{backend} moves a client by {travel}")
            for distance, plain_distance in zip(distances, expected, strict=True):
                if not abs(distance - plain_distance) <= 0.2 * plain_distance:
                    moves = f"{distances}, the plain loop by {expected}"
                    raise RuntimeError(f"{backend} moves shared and kept numbers by {moves}")


def moved(contestant: Plain | Ours, start: State) -> tuple[list[float], dict[int, float]]:
    """How far a turn moves the shared and the kept numbers, and every client."""
    travelled = contestant.watch()
    contestant.turn()
    return [float((after - before).norm()) for after, before in zip(contestant.state(), start, strict=True)], travelled


def contest(
    workload: Workload,
    names: Sequence[str],
    device: torch.device = CPU,
    check: Callable[..., None] = check_same_work,
    contestants: Callable[..., tuple[Any, Any]] = contestants,
) -> Contest:
    """The plain loop, and each backend and variant, which have been shown to do the same work."""
    check(workload, names, device)
    plain, ours = contestants(workload, names, device)
    actions = {"plain": plain.turn, **{name: contestant.turn for name, contestant in ours.items()}}
    return Contest(actions, plain.samples, device=device)
