"""The loop over clients that everyone writes, for each method of a workload."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate

import torch
from plain_loop import train, weighted_mean
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client import Examples
from pfl_lightning.tree import Tree, movable, prefixed

State = tuple[Tensor, Tensor]  # all numbers that are shared, and all that clients keep
LossOf = Callable[[Tensor, Tensor], Tensor]  # of the inputs and targets of a mini-batch


def held_by(examples: Examples, row: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of one client, without padding."""
    client = examples.rows(row, row + 1)
    return client.gather(client.positions)[0], client.targets(client.positions)[0]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of some tensors in a row, copied; BatchNorm's counters of batches are not among them."""
    rows = [tensor.detach().flatten() for tensor in tensors if tensor.is_floating_point()]
    return torch.cat(rows) if rows else torch.zeros(0)


def copies(tensors: Mapping[str, Tensor]) -> Tree:
    """Tensors that nothing else changes."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tree:
    """The tensors whose names begin with a prefix, which is removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class PlainLoop:
    """FedAvg, or FedRep with head epochs: one client after another; it finds its inputs transformed already.

    Attributes:
        data: Inputs and labels of each client.
        states: The tensors that each client keeps.
        shared: Names of the tensors of which the server takes the mean.
    """

    def __init__(self, workload: Workload, network: nn.Module, data: RandomClients) -> None:
        self.workload = workload
        self.options = workload.options
        self.network = network
        self.stages: list[list[int]] = []
        self.data: dict[int, tuple[Tensor, Tensor]] = {}
        for size in workload.stages:
            data.participation.resize(size)
            examples = data.make_round(0).examples
            self.stages.append(examples.host_ids.tolist())
            self.data |= {client: held_by(examples, row) for row, client in enumerate(self.stages[-1])}
        start = movable(network)
        self.head = list(start)[-2:] if "head_epochs" in self.options else []  # weight and bias of the last layer
        self.body = [name for name in start if name not in self.head]
        self.shared = self.body
        self.states = {client: copies(self.initial_state(start)) for client in self.data}

    def initial_state(self, start: Tree) -> Tree:
        """What a client keeps at the beginning, where the network's tensors are ``start``."""
        return {name: start[name] for name in self.head}

    @property
    def samples(self) -> int:
        """Training samples of all rounds of a turn, also of clients who report a loss and then do not train."""
        return sum(self.count(clients) for clients in self.stages)

    def count(self, clients: Iterable[int]) -> int:
        """Samples of some clients."""
        return sum(len(self.data[client][1]) for client in clients)

    def turn(self) -> None:
        """The rounds that are measured together."""
        for clients in self.stages:
            self.round(clients)

    def round(self, clients: Sequence[int]) -> None:
        """One communication round of the workload's method."""
        mean = weighted_mean(self.uploads(clients))
        self.network.load_state_dict({**self.network.state_dict(), **mean})

    def uploads(self, clients: Sequence[int]) -> Iterator[tuple[float, Tree]]:
        """Weights and shared tensors of the clients, each trained when it is its turn."""
        total = self.count(clients)
        for client in clients:
            trained = self.local_update(client)
            self.states[client] = {name: trained[name] for name in self.states[client]}
            yield self.count([client]) / total, {name: trained[name] for name in self.shared}

    def local_update(self, client: int) -> Tree:
        """The tensors of one client after its local training."""
        model = self.received(client)
        if self.head:
            self.train(model, client, cross_entropy(model), self.head, self.options["head_epochs"])
        self.train(model, client, self.loss_of(model, client), self.body, self.options["epochs"])
        return {**self.states[client], **model.state_dict(), **self.next_state(model, client)}

    def received(self, client: int) -> nn.Module:
        """The server's model with what the client keeps, as a copy that it trains."""
        model = copy.deepcopy(self.network)
        model.load_state_dict(self.states[client], strict=False)
        return model

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """The loss of a model in local training."""
        return cross_entropy(model)

    def before_step(self, model: nn.Module, client: int) -> None:
        """Change the gradients."""

    def after_step(self, model: nn.Module, client: int) -> None:
        """Follow the parameters."""

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """Tensors of the client beside those of its trained model."""
        return {}

    def train(self, model: nn.Module, client: int, loss_of: LossOf, names: Iterable[str], epochs: int = 1) -> None:
        """Some epochs at one client, in which only the named parameters move."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
        optimizer = self.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
        batches = (batch for _ in range(epochs) for batch in self.batches(client))
        hooks = (partial(hook, model, client) for hook in (self.before_step, self.after_step))
        train(optimizer, batches, loss_of, *hooks)

    def batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The mini-batches of one epoch."""
        inputs, targets = self.data[client]
        for batch in torch.randperm(len(targets), device=targets.device).split(self.options["batch_size"]):
            yield inputs[batch], targets[batch]

    def optimizer(self, moving: list[nn.Parameter]) -> Optimizer:
        """What takes the local steps; AdamW is without decay."""
        if self.options.get("local_optimizer") == "AdamW":
            return AdamW(moving, lr=self.options["lr"], weight_decay=0.0)
        return SGD(moving, lr=self.options["lr"], momentum=self.options.get("momentum", 0.0))

    def state(self) -> State:
        """What is shared, and what is kept in the order of the clients."""
        network = self.network.state_dict()
        rows = [self.states[client] for client in sorted(self.states)]
        stacks = [torch.stack([row[name] for row in rows]) for name in rows[0]]
        return flat(network[name] for name in self.shared), flat(stacks)

    def watch(self) -> dict[int, float]:
        """Note from now on how far each client moves; what is noted is in the result."""
        travelled: dict[int, float] = defaultdict(float)
        usual = self.local_update

        def local_update(client: int) -> Tree:
            start = {**self.network.state_dict(), **self.states[client]}
            trained = usual(client)
            travelled[client] += float(flat(trained[name] - start[name] for name in start if name in trained).norm())
            return trained

        self.local_update = local_update  # type: ignore[method-assign]
        return travelled


def cross_entropy(model: nn.Module) -> LossOf:
    """The usual loss of a model."""
    return lambda inputs, targets: F.cross_entropy(model(inputs), targets)


def pairs(model: nn.Module, center: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Parameters of a model that can move, and those of another one, which cannot."""
    for parameter, anchor in zip(model.parameters(), center.parameters(), strict=True):
        if parameter.requires_grad:
            yield parameter, anchor.detach()


class PlainFedProx(PlainLoop):
    """A loss with a pull to the received model."""

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """Cross-entropy and the pull to the received model."""
        return self.tied(model, self.network)

    def tied(self, model: nn.Module, center: nn.Module) -> LossOf:
        """Cross-entropy and the pull to another model."""

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            distance = sum((parameter - anchor).square().sum() for parameter, anchor in pairs(model, center))
            return F.cross_entropy(model(inputs), targets).add(distance, alpha=self.options["proximity"] / 2)

        return loss


class PlainDitto(PlainFedProx):
    """FedAvg, and a model of each client's own with a pull to the received one."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's model."""
        return prefixed("personal", start)

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """Cross-entropy."""
        return cross_entropy(model)

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """The client's model, trained."""
        personal = copy.deepcopy(self.network)
        personal.load_state_dict(under("personal.", self.states[client]), strict=False)  # what is frozen stays
        self.train(personal, client, self.tied(personal, self.network), self.body)
        return prefixed("personal", personal.state_dict())


class PlainPFedMe(PlainFedProx):
    """The pull is to a copy of the received model, which follows after each step and is the upload."""

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """Cross-entropy and what ties the model to the copy."""
        self.copy = copy.deepcopy(self.network)
        return self.tied(model, self.copy)

    def after_step(self, model: nn.Module, client: int) -> None:
        """Move the copy."""
        strength = self.options.get("correlation") or self.options["proximity"]
        for parameter, anchor in pairs(model, self.copy):
            anchor.lerp_(parameter.detach(), self.options["copy_lr"] * strength)

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """The copy, in place of the model."""
        return self.copy.state_dict()


class PlainFedMac(PlainPFedMe):
    """A reward for the correlation with the copy in place of the pull."""

    def tied(self, model: nn.Module, center: nn.Module) -> LossOf:
        """Cross-entropy and the reward."""

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            agreement = sum((parameter * anchor).sum() for parameter, anchor in pairs(model, center))
            return F.cross_entropy(model(inputs), targets).sub(agreement, alpha=self.options["correlation"])

        return loss


class PlainHeurFedAMP(PlainFedProx):
    """Each client receives a mix of all clients' models (``cloud``)."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's model, and the mix that it receives."""
        self.shared = []
        return {**start, **prefixed("cloud", start)}

    def received(self, client: int) -> nn.Module:
        """The client's mix."""
        network = copy.deepcopy(self.network)
        network.load_state_dict(under("cloud.", self.states[client]))
        return network

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """Cross-entropy and the pull to the mix."""
        return self.tied(model, self.received(client))

    def round(self, clients: Sequence[int]) -> None:
        """A round, and the mixes: half a client's own model, half the others by a softmax of ten times the cosines."""
        super().round(clients)
        models = {client: flat(state[name] for name in self.body) for client, state in self.states.items()}
        for client, state in self.states.items():
            peers = [peer for peer in models if peer != client]
            cosines = torch.stack([F.cosine_similarity(models[client], models[peer], dim=0) for peer in peers])
            shares = 0.5 * (10 * cosines).softmax(0)
            for name in self.body:
                parts = [share * self.states[peer][name] for share, peer in zip(shares, peers, strict=True)]
                state[f"cloud.{name}"] = 0.5 * state[name] + sum(parts)


class PlainGossip(PlainLoop):
    """D-PSGD, or DePRL with head epochs: without a server, clients mix with two neighbours on a ring."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's model."""
        self.shared = []
        return start

    def round(self, clients: Sequence[int]) -> None:
        """A round; then each client takes the mean of its body and those of its two neighbours."""
        super().round(clients)
        order = sorted(self.states)
        models = [dict(self.states[client]) for client in order]
        for place, client in enumerate(order):
            before, middle, after = (models[neighbour % len(models)] for neighbour in (place - 1, place, place + 1))
            names = (name for name in self.body if middle[name].is_floating_point())  # no counters of BatchNorm
            self.states[client] |= {name: (before[name] + middle[name] + after[name]) / 3 for name in names}


class PlainDeltaFL(PlainLoop):
    """FedAvg of the clients with the largest losses."""

    def round(self, clients: Sequence[int]) -> None:
        """A round of the tail."""
        super().round(self.tail(clients))

    def tail(self, clients: Sequence[int]) -> list[int]:
        """The clients whose loss reaches the quantile at 1 - conformity, where each weighs as many as its samples."""
        losses = {client: self.loss(client) for client in clients}
        ascending = sorted(clients, key=losses.__getitem__)
        below = list(accumulate(self.count([client]) for client in ascending))
        place = next(i for i, count in enumerate(below) if count >= (1 - self.options["conformity"]) * below[-1])
        return [client for client in clients if losses[client] >= losses[ascending[place]]]

    @torch.no_grad()
    def loss(self, client: int) -> float:
        """Mean loss of the server's model at one client."""
        self.network.eval()
        loss = cross_entropy(self.network)(*self.data[client])
        self.network.train()
        return float(loss)


class PlainScaffold(PlainLoop):
    """SCAFFOLD with option II."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's control variate."""
        self.server = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        return prefixed("control", self.server)

    def round(self, clients: Sequence[int]) -> None:
        """A round, and the server's control variate."""
        before = {client: self.states[client] for client in clients}
        super().round(clients)
        for name, control in self.server.items():
            key = f"control.{name}"
            control += sum(self.states[client][key] - before[client][key] for client in clients) / len(self.data)

    def before_step(self, model: nn.Module, client: int) -> None:
        """Add the server's control variate less the client's."""
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            parameter.grad += self.server[name] - self.states[client][f"control.{name}"]

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """The client's control variate."""
        rate = self.options["lr"] * -(-self.count([client]) // self.options["batch_size"])
        start = self.network.state_dict()
        trained = model.state_dict()
        control = under("control.", self.states[client])
        changes = {name: (start[name] - trained[name]) / rate - self.server[name] for name in control}
        return prefixed("control", {name: control[name] + change for name, change in changes.items()})


def features(model: nn.Module, inputs: Tensor) -> Tensor:
    """Inputs of the last layer."""
    hidden: Tensor = nn.Sequential(*list(model.children())[:-1])(inputs)
    return hidden


def last_layer(model: nn.Module) -> nn.Module:
    """The head."""
    return list(model.children())[-1]


class PlainMoon(PlainLoop):
    """MOON, with mu 1 and temperature 0.5."""

    def initial_state(self, start: Tree) -> Tree:
        """The body that the client trained last."""
        return prefixed("previous", dict(list(start.items())[:-2]))  # without weight and bias of the last layer

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """Cross-entropy and the contrastive term."""
        previous = copy.deepcopy(self.network)
        previous.load_state_dict(under("previous.", self.states[client]), strict=False)

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            hidden = features(model, inputs)
            with torch.no_grad():
                anchors = [features(network, inputs) for network in (self.network, previous)]
            near, far = ((torch.cosine_similarity(hidden, anchor, dim=1) / 0.5).exp() for anchor in anchors)
            return F.cross_entropy(last_layer(model)(hidden), targets) - (near / (near + far)).log().mean()

        return loss

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """The trained body."""
        return prefixed("previous", model.state_dict())


class PlainFedProto(PlainLoop):
    """FedProto, with strength 1."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's model."""
        self.shared = []
        width = list(start.values())[-2].shape[1]
        self.prototypes = next(iter(start.values())).new_zeros(self.workload.classes, width)
        self.counts = torch.zeros(self.workload.classes)
        return start

    def round(self, clients: Sequence[int]) -> None:
        """A round, and the prototypes of the classes that were seen."""
        self.sums = torch.zeros_like(self.prototypes)
        self.seen = torch.zeros_like(self.counts)
        super().round(clients)
        places = self.seen > 0
        self.prototypes[places] = self.sums[places] / self.seen[places, None]
        self.counts[places] = self.seen[places]

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """Cross-entropy and the distance to the prototypes of classes that were seen."""

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            hidden = features(model, inputs)
            distances = (hidden - self.prototypes[targets]).square().mean(1) * (self.counts[targets] > 0)
            return F.cross_entropy(last_layer(model)(hidden), targets) + distances.mean()

        return loss

    @torch.no_grad()
    def next_state(self, model: nn.Module, client: int) -> Tree:
        """Nothing else; add the client's features to the sums."""
        inputs, targets = self.data[client]
        self.sums.index_add_(0, targets, features(model, inputs))
        self.seen += targets.bincount(minlength=len(self.seen))
        return {}


class PlainAPFL(PlainLoop):
    """APFL, with a weight of 0.5 that is learned."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's model and its weight in the mix."""
        return {**prefixed("personal", start), "weight": next(iter(start.values())).new_tensor(0.5)}

    def local_update(self, client: int) -> Tree:
        """The tensors of one client after its local training."""
        state = self.states[client]
        lr = self.options["lr"]
        weight = state["weight"]
        model, own_model, mixture = (copy.deepcopy(self.network) for _ in range(3))
        own_model.load_state_dict(under("personal.", state))
        triples = list(zip(model.parameters(), own_model.parameters(), mixture.parameters(), strict=True))
        for inputs, targets in self.batches(client):
            for server, personal, mixed in triples:
                mixed.data = weight * personal.data + (1 - weight) * server.data
            gradients = []
            for network in (model, mixture):
                loss = F.cross_entropy(network(inputs), targets)
                gradients.append(torch.autograd.grad(loss, list(network.parameters())))
            slope = torch.zeros_like(weight)
            for (server, personal, _), gradient, mixed_gradient in zip(triples, *gradients, strict=True):
                slope += ((personal.data - server.data) * mixed_gradient).sum()
                personal.data -= lr * weight * mixed_gradient
                server.data -= lr * gradient
            weight = (weight - lr * slope).clamp(0, 1)
        return {**model.state_dict(), **prefixed("personal", own_model.state_dict()), "weight": weight}


LOOPS: dict[str, type[PlainLoop]] = {
    "FedAvg": PlainLoop,
    "FedRep": PlainLoop,
    "FedProx": PlainFedProx,
    "Ditto": PlainDitto,
    "PFedMe": PlainPFedMe,
    "FedMac": PlainFedMac,
    "HeurFedAMP": PlainHeurFedAMP,
    "DPSGD": PlainGossip,
    "DePRL": PlainGossip,
    "DeltaFL": PlainDeltaFL,
    "SCAFFOLD": PlainScaffold,
    "MOON": PlainMoon,
    "FedProto": PlainFedProto,
    "APFL": PlainAPFL,
}
