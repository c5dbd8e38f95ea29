"""Communication rounds: ours with each backend, and the loop over clients that everyone writes."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from benchmarks.device import CPU
from benchmarks.timing import Contest, default_float
from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client import BackendName, Examples
from pfl_lightning.methods import (
    DPSGD,
    DeltaFL,
    DePRL,
    Ditto,
    FedAvg,
    FedMac,
    FedProx,
    FedRep,
    HeurFedAMP,
    Method,
    PFedMe,
)
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params

State = tuple[Tensor, Tensor]  # all numbers that are shared, and all that clients keep


class PlainLoop:
    """One client after another, the way it is usually written; it finds its inputs transformed already."""

    def __init__(self, workload: Workload, network: nn.Module, data: RandomClients) -> None:
        self.workload, self.network = workload, network
        self.stages: list[list[int]] = []
        self.data: dict[int, tuple[Tensor, Tensor]] = {}
        for size in workload.stages:
            data.participation.resize(size)
            examples = data.make_round(0).examples
            self.stages.append(examples.host_ids.tolist())
            self.data |= {client: held_by(examples, row) for row, client in enumerate(self.stages[-1])}
        start = network.state_dict()
        self.head = list(start)[-2:] if workload.head_epochs else []  # weight and bias of the last layer
        self.body = [name for name in start if name not in self.head]
        self.shared = [] if workload.attentive or workload.gossip else self.body
        keeps = {name: name for name in start if name in self.head or workload.gossip}
        keeps |= {f"personal.{name}": name for name in start if workload.personal}
        keeps |= {f"{place}{name}": name for place in ("", "cloud.") for name in start if workload.attentive}
        self.kept = {client: {kept: start[name].clone() for kept, name in keeps.items()} for client in self.data}

    @property
    def samples(self) -> int:
        """Training samples of all rounds of a turn, also of clients who report a loss and then do not train."""
        return sum(len(self.data[client][1]) for clients in self.stages for client in clients)

    def turn(self) -> None:
        """The rounds that are measured together."""
        for clients in self.stages:
            self.round(clients)

    def round(self, clients: Sequence[int]) -> None:
        """One communication round of the workload's method."""
        clients = self.tail(clients) if self.workload.conformity < 1 else clients
        total, state = sum(len(self.data[client][1]) for client in clients), self.network.state_dict()
        mean = {name: torch.zeros_like(state[name], dtype=torch.get_default_dtype()) for name in self.shared}
        for client in clients:
            trained = self.local_update(client)
            self.kept[client] = {name: trained[name] for name in self.kept[client]}
            for name in self.shared:
                mean[name] += trained[name] * (len(self.data[client][1]) / total)
        self.network.load_state_dict({**state, **mean})
        if self.workload.attentive:
            self.mix_by_attention()
        if self.workload.gossip:
            self.mix_on_a_ring()

    def mix_on_a_ring(self) -> None:
        """Each client takes the mean of its body and those of its two neighbours."""
        models = [dict(self.kept[client]) for client in sorted(self.kept)]
        for place, client in enumerate(sorted(self.kept)):
            trio = [models[other % len(models)] for other in (place - 1, place, place + 1)]
            mixed = (name for name in self.body if models[0][name].is_floating_point())  # no counters of BatchNorm
            self.kept[client] |= {name: sum(model[name] for model in trio) / 3 for name in mixed}

    def mix_by_attention(self) -> None:
        """Each client receives half its own model next, and half the others by a softmax of ten times the cosines."""
        models = {client: flat(kept[name] for name in self.body) for client, kept in self.kept.items()}
        for client, kept in self.kept.items():
            others = [other for other in models if other != client]
            cosines = torch.stack([F.cosine_similarity(models[client], models[other], dim=0) for other in others])
            shares = 0.5 * (10 * cosines).softmax(0)
            for name in self.body:
                theirs = [share * self.kept[other][name] for share, other in zip(shares, others, strict=True)]
                kept[f"cloud.{name}"] = 0.5 * kept[name] + sum(theirs)

    def tail(self, clients: Sequence[int]) -> list[int]:
        """The clients whose loss reaches the quantile at 1 - conformity, where each weighs as many as its samples."""
        losses = {client: self.loss(client) for client in clients}
        ascending = sorted(clients, key=losses.__getitem__)
        below = list(accumulate(len(self.data[client][1]) for client in ascending))
        place = next(i for i, samples in enumerate(below) if samples >= (1 - self.workload.conformity) * below[-1])
        return [client for client in clients if losses[client] >= losses[ascending[place]]]

    @torch.no_grad()
    def loss(self, client: int) -> float:
        """Mean loss of the server's model at one client."""
        inputs, targets = self.data[client]
        self.network.eval()
        loss = F.cross_entropy(self.network(inputs), targets)
        self.network.train()
        return float(loss)

    def local_update(self, client: int) -> dict[str, Tensor]:
        """The tensors of one client after its local training."""
        received, workload = self.received(client), self.workload
        model = copy.deepcopy(received)
        if self.head:
            model.load_state_dict(self.kept[client], strict=False)
            self.train(model, received, self.head, workload.head_epochs, *self.data[client])
        if workload.follows:
            copied = copy.deepcopy(received)
            self.train(model, copied, self.body, 1, *self.data[client], workload.proximity)
            return copied.state_dict()
        proximity = 0.0 if workload.personal else workload.proximity
        self.train(model, received, self.body, 1, *self.data[client], proximity)
        if not workload.personal:
            return {**self.kept[client], **model.state_dict()}
        personal = copy.deepcopy(self.network)
        personal.load_state_dict(under("personal.", self.kept[client]))
        self.train(personal, received, self.body, 1, *self.data[client], workload.proximity)
        return {**model.state_dict(), **{f"personal.{name}": t for name, t in personal.state_dict().items()}}

    def received(self, client: int) -> nn.Module:
        """The server's model, the client's own mix of all models, or without a server its own model."""
        if not self.workload.attentive and not self.workload.gossip:
            return self.network
        network = copy.deepcopy(self.network)
        network.load_state_dict(under("cloud." if self.workload.attentive else "", self.kept[client]))
        return network

    def train(
        self,
        model: nn.Module,
        received: nn.Module,
        moves: list[str],
        epochs: int,
        inputs: Tensor,
        targets: Tensor,
        proximity: float = 0.0,
    ) -> None:
        """Some epochs at one client, in which only the named parameters move, tied to the received ones."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in moves)
        moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = SGD(moving, lr=self.workload.lr, momentum=self.workload.momentum)
        for _ in range(epochs):
            for batch in torch.randperm(len(targets), device=targets.device).split(self.workload.batch_size):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs[batch]), targets[batch])
                pairs = list(zip(model.parameters(), received.parameters(), strict=True))
                if proximity:
                    loss = loss + proximity / 2 * sum((own - anchor.detach()).square().sum() for own, anchor in pairs)
                if self.workload.correlation:
                    agreement = sum((own * anchor.detach()).sum() for own, anchor in pairs)
                    loss = loss - self.workload.correlation * agreement
                loss.backward()
                optimizer.step()
                if self.workload.follows:
                    for own, anchor in pairs:
                        anchor.data.lerp_(own.data, self.workload.follows)

    def state(self) -> State:
        """What is shared, and what is kept in the order of the clients."""
        shared, rows = self.network.state_dict(), [self.kept[client] for client in sorted(self.kept)]
        kept = [torch.stack([row[name] for row in rows]) for name in rows[0]]
        return flat(shared[name] for name in self.shared), flat(kept)

    def watch(self) -> dict[int, float]:
        """Note from now on how far each client moves; what is noted is in the result."""
        travelled: dict[int, float] = defaultdict(float)
        usual = self.local_update

        def local_update(client: int) -> dict[str, Tensor]:
            start = {**self.network.state_dict(), **self.kept[client]}
            trained = usual(client)
            travelled[client] += float(flat(trained[name] - start[name] for name in start).norm())
            return trained

        self.local_update = local_update  # type: ignore[method-assign]
        return travelled


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


def method_of(workload: Workload, backend: BackendName) -> Method:
    """The method of a workload, built.

    Raises:
        PflError: If the backend cannot run the network.
    """
    settings: dict[str, Any] = {"network": workload.network, "backend": backend, "weight_decay": 0.0}
    settings |= {name: getattr(workload, name) for name in ("batch_size", "lr", "momentum")}
    method: Method
    if workload.gossip:
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
    method.build(workload.input_shape, workload.classes, len(workload.counts()))
    return method


def without_trainer(method: Method) -> None:
    """Let a method that is built take training steps without a trainer, which is where logging would go."""
    server = method.configure_optimizers()
    method.optimizers = lambda: server  # type: ignore[method-assign,assignment]
    method.log_round = lambda batch, loss: None  # type: ignore[method-assign]
    method.log = lambda *named: None  # type: ignore[method-assign]


def held_by(examples: Examples, row: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of one client, without padding."""
    own = examples.rows(row, row + 1)
    return own.gather(own.positions)[0], own.targets(own.positions)[0]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of some tensors in a row, copied; BatchNorm's counters of batches are not among them."""
    rows = [tensor.detach().flatten() for tensor in tensors if tensor.is_floating_point()]
    return torch.cat(rows) if rows else torch.zeros(0)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, which is removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def contestants(
    workload: Workload, names: Sequence[str], device: torch.device = CPU
) -> tuple[PlainLoop, dict[str, Ours]]:
    """The plain loop, and each backend and variant, with the same clients and the same start model."""
    data = RandomClients(workload, device)
    network = workload.module(method_of(workload, "sequential").network).to(device)
    return PlainLoop(workload, network, data), {name: MAKERS[name](workload, data) for name in names}


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
