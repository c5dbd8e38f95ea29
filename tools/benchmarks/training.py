"""Communication rounds: ours with each backend, beside the loop over clients that everyone writes."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from benchmarks.device import CPU
from benchmarks.loops import LOOPS, PlainLoop, State, flat
from benchmarks.timing import Contest, default_float
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client import BackendName, Examples
from pfl_lightning.methods import (
    APFL,
    DPSGD,
    MOON,
    SCAFFOLD,
    DeltaFL,
    DePRL,
    Ditto,
    FedAvg,
    FedMac,
    FedProto,
    FedProx,
    FedRep,
    HeurFedAMP,
    Method,
    PFedMe,
)
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params


class Ours:
    """Our round: the data module says who takes part, and the method takes a training step without a trainer.

    Raises:
        PflError: If the backend cannot run the network.
    """

    def __init__(self, workload: Workload, data: RandomClients, backend: BackendName) -> None:
        self.method = method_of(workload, backend).to(data.device)
        self.workload, self.data = workload, data
        without_trainer(self.method)

    def turn(self) -> None:
        """The rounds that are measured together."""
        for size in self.workload.stages:
            self.data.participation.resize(size)
            self.method.training_step(self.data.make_round(self.method.accounting.clock.rounds), 0)

    def state(self) -> State:
        """The shared tensors, and the kept ones in the order of the clients."""
        every = torch.arange(self.data.num_clients, device=self.data.device)
        shared = [tensor for name, tensor in self.method.network.state_dict().items() if name in self.method.shared]
        return flat(shared), flat(self.method.clients.gather(every).values())

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


# ways to run our round, by their names; variants.py adds its own
MAKERS: dict[str, Callable[[Workload, RandomClients], Ours]] = {
    backend: partial(Ours, backend=backend) for backend in get_args(BackendName)
}


FIXED_MOMENTUM: dict[str, type[Method]] = {"APFL": APFL, "SCAFFOLD": SCAFFOLD}


def method_of(workload: Workload, backend: BackendName) -> Method:
    """The method of a workload, built.

    Raises:
        PflError: If the backend cannot run the network.
    """
    settings: dict[str, Any] = {"network": workload.network, "backend": backend, "weight_decay": 0.0}
    settings |= {name: getattr(workload, name) for name in ("adapter", "epochs", "batch_size", "lr", "momentum")}
    method: Method
    if workload.loop == "AdamW":
        settings |= {"local_optimizer": "AdamW", "momentum": None}
        heads = workload.head_epochs
        method = FedRep(head_epochs=heads, **settings) if heads else FedAvg(**settings)
    elif workload.loop in FIXED_MOMENTUM:
        method = FIXED_MOMENTUM[workload.loop](**{name: settings[name] for name in settings if name != "momentum"})
    elif workload.loop:
        method = {"MOON": MOON, "FedProto": FedProto}[workload.loop](**settings)
    elif workload.gossip:
        kind = partial(DePRL, head_epochs=workload.head_epochs) if workload.head_epochs else DPSGD
        method = kind(**settings)
    elif workload.head_epochs:
        method = FedRep(head_epochs=workload.head_epochs, **settings)
    elif workload.correlation:
        copy_lr = workload.follows / workload.correlation
        method = FedMac(correlation=workload.correlation, copy_lr=copy_lr, **settings)
    elif workload.follows:
        method = PFedMe(proximity=workload.proximity, copy_lr=workload.follows / workload.proximity, **settings)
    elif workload.attentive:
        method = HeurFedAMP(proximity=workload.proximity, **settings)
    elif workload.proximity:
        method = (Ditto if workload.personal else FedProx)(proximity=workload.proximity, **settings)
    elif workload.conformity < 1:
        method = DeltaFL(conformity=workload.conformity, **settings)
    else:
        method = FedAvg(**settings)
    shape, clients = workload.input_shape, len(workload.counts())
    method.build(shape, workload.classes, clients, input_kind=workload.input_kind)
    return method


def without_trainer(method: Method) -> None:
    """Let a method that is built take training steps without a trainer, which is where logging would go."""
    server = method.configure_optimizers()
    method.optimizers = lambda: server  # type: ignore[method-assign,assignment]
    method.log_round = lambda batch, loss: None  # type: ignore[method-assign]
    method.log = lambda *named: None  # type: ignore[method-assign]


def contestants(
    workload: Workload, names: Sequence[str], device: torch.device = CPU
) -> tuple[PlainLoop, dict[str, Ours]]:
    """The plain loop, and each backend and variant, with the same clients and the same start model."""
    data = RandomClients(workload, device)
    network = workload.module(method_of(workload, "sequential").network).to(device)
    loop = LOOPS.get(workload.loop, PlainLoop)
    return loop(workload, network, data), {name: MAKERS[name](workload, data) for name in names}


def contest(workload: Workload, names: Sequence[str], device: torch.device = CPU) -> Contest:
    """The plain loop, and each backend and variant, which have been shown to do the same work."""
    check_same_work(workload, names, device)
    plain, ours = contestants(workload, names, device)
    actions = {"plain": plain.turn, **{name: one.turn for name, one in ours.items()}}
    return Contest(actions, plain.samples, device=device)


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
            found, travelled = moved(contestant, start)
            if others := travelled.keys() ^ clients.keys():
                raise RuntimeError(f"{backend} or the plain loop trains clients that the other does not: {others}")
            for client, distance in clients.items():
                if not travelled[client] > distance / 2:
                    travel = f"{travelled[client]:.3g}, the plain loop by {distance:.3g}"
                    raise RuntimeError(f"{backend} moves a client by {travel}")
            if not all(abs(one - other) <= 0.2 * other for one, other in zip(found, expected, strict=True)):
                raise RuntimeError(f"{backend} moves shared and kept numbers by {found}, the plain loop by {expected}")


def moved(contestant: PlainLoop | Ours, start: State) -> tuple[list[float], dict[int, float]]:
    """How far a turn moves the shared and the kept numbers, and every client."""
    travelled = contestant.watch()
    contestant.turn()
    return [float((after - before).norm()) for after, before in zip(contestant.state(), start, strict=True)], travelled
