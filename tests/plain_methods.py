"""The loop over clients that everyone writes, for many methods: oracle of their tests, and the benchmark's baseline."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from plain_loop import train, weighted_mean
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from pfl_lightning.client import Examples
from pfl_lightning.tree import Tree, movable, prefixed

Samples = tuple[Tensor, Tensor]  # inputs and targets
LossOf = Callable[[Tensor, Tensor], Tensor]  # of the inputs and targets of a mini-batch
Criterion = Callable[[Tensor, Tensor], Tensor]  # of its outputs and targets


def samples_of(examples: Examples, row: int = 0) -> Samples:
    """Inputs and targets of one client of a cohort, without padding."""
    client = examples.rows(row, row + 1)
    return client.gather(client.positions)[0], client.targets(client.positions)[0]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers of some tensors in a row, copied; BatchNorm's counters of batches are not among them."""
    rows = [tensor.detach().flatten() for tensor in tensors if tensor.is_floating_point()]
    return torch.cat(rows) if rows else torch.zeros(0)


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tree:
    """The tensors whose names begin with a prefix, which is removed."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class PlainLoop:
    """FedAvg, or FedRep with head epochs: one client after another.

    Args:
        network: The server's model.
        data: Inputs, transformed already, and targets of each client.
        options: The method's.
        criterion: The loss of a mini-batch.

    Attributes:
        states: The tensors that each client keeps.
        shared: Names of the tensors of which the server takes the mean.
    """

    def __init__(
        self,
        network: nn.Module,
        data: Mapping[int, Samples],
        options: Mapping[str, Any],
        criterion: Criterion = F.cross_entropy,
    ) -> None:
        self.network = network
        self.data = data
        self.options = options
        self.criterion = criterion
        start = movable(network)
        self.head = list(start)[-2:] if "head_epochs" in options else []  # weight and bias of the last layer
        self.body = [name for name in start if name not in self.head]
        self.shared = self.body
        state = self.initial_state(start)
        self.states = {client: {name: tensor.clone() for name, tensor in state.items()} for client in data}

    def initial_state(self, start: Tree) -> Tree:
        """What a client keeps at the beginning, where the network's tensors are ``start``."""
        return {name: start[name] for name in self.head}

    def count(self, *clients: int) -> int:
        """Samples of some clients."""
        return sum(len(self.data[client][1]) for client in clients)

    def round(self, clients: Sequence[int]) -> None:
        """One communication round."""
        mean = weighted_mean(self.uploads(clients))
        self.network.load_state_dict({**self.network.state_dict(), **mean})

    def uploads(self, clients: Sequence[int]) -> Iterator[tuple[float, Tree]]:
        """Weights and shared tensors of the clients, each trained when it is its turn."""
        for client, weight in zip(clients, self.weights(clients), strict=True):
            trained = self.local_update(client)
            self.states[client] = {name: trained[name] for name in self.states[client]}
            yield weight, {name: trained[name] for name in self.shared}

    def weights(self, clients: Sequence[int]) -> list[float]:
        """The clients' shares of the samples."""
        total = self.count(*clients)
        return [self.count(client) / total for client in clients]

    def local_update(self, client: int) -> Tree:
        """The tensors of one client after its local training."""
        model = self.received(client)
        if self.head:
            self.train(model, client, self.usual_loss(model), "head", self.options["head_epochs"])
        self.train(model, client, self.loss_of(model, client), "body" if self.head else "all")
        return {**self.states[client], **model.state_dict(), **self.next_state(model, client)}

    def received(self, client: int) -> nn.Module:
        """The server's model with what the client keeps, as a copy that it trains."""
        model = copy.deepcopy(self.network)
        model.load_state_dict(self.states[client], strict=False)
        return model

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """The loss of a model in local training."""
        return self.usual_loss(model)

    def usual_loss(self, model: nn.Module) -> LossOf:
        """The loss of a model, with nothing added."""
        return lambda inputs, targets: self.criterion(model(inputs), targets)

    def before_step(self, model: nn.Module, client: int) -> None:
        """Change the gradients."""

    def after_step(self, model: nn.Module, client: int) -> None:
        """Follow the parameters."""

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """Tensors of the client beside those of its trained model."""
        return {}

    def train(self, model: nn.Module, client: int, loss_of: LossOf, part: str, epochs: int | None = None) -> None:
        """Some epochs at one client, in which only the head moves, or only the body, where there are both."""
        names = self.head if part == "head" else self.body
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
        optimizer = self.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
        hooks = (partial(hook, model, client) for hook in (self.before_step, self.after_step))
        train(optimizer, self.batches(client, part, epochs), loss_of, *hooks)

    def batches(self, client: int, part: str, epochs: int | None = None) -> Iterator[Samples]:
        """The mini-batches of some epochs; by default of as many as the method has."""
        inputs, targets = self.data[client]
        for epoch in range(epochs or self.options["epochs"]):
            for batch in self.order(client, part, epoch).split(self.options["batch_size"]):
                yield inputs[batch], targets[batch]

    def order(self, client: int, part: str, epoch: int) -> Tensor:
        """In which an epoch visits the samples."""
        return torch.randperm(self.count(client), device=self.data[client][1].device)

    def optimizer(self, moving: list[nn.Parameter]) -> Optimizer:
        """What takes the local steps; AdamW is without decay."""
        if self.options.get("optimizer") == "AdamW":
            return AdamW(moving, lr=self.options["lr"], weight_decay=0.0)
        return SGD(moving, lr=self.options["lr"], momentum=self.options.get("momentum", 0.0))


def pairs(model: nn.Module, center: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Parameters of a model that can move, and those of another one, which cannot."""
    for parameter, anchor in zip(model.parameters(), center.parameters(), strict=True):
        if parameter.requires_grad:
            yield parameter, anchor.detach()


class PlainFedProx(PlainLoop):
    """A loss with a pull to the received model."""

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """The usual loss and the pull to the received model."""
        return self.tied(model, self.network)

    def tied(self, model: nn.Module, center: nn.Module) -> LossOf:
        """The usual loss and the pull to another model."""

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            distance = sum((parameter - anchor).square().sum() for parameter, anchor in pairs(model, center))
            return self.criterion(model(inputs), targets).add(distance, alpha=self.options["proximity"] / 2)

        return loss


class PlainDitto(PlainFedProx):
    """FedAvg, and a model of each client's own with a pull to the received one."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's model."""
        return prefixed("personal", start)

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """The usual loss."""
        return self.usual_loss(model)

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """The client's model, trained."""
        personal = copy.deepcopy(self.network)
        personal.load_state_dict(under("personal.", self.states[client]), strict=False)  # what is frozen stays
        self.train(personal, client, self.tied(personal, self.network), "personal", self.options.get("personal_epochs"))
        return prefixed("personal", personal.state_dict())


class PlainPFedMe(PlainFedProx):
    """The pull is to a copy of the received model, which follows after each step and is the upload."""

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """The usual loss and what ties the model to the copy."""
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
        """The usual loss and the reward."""

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            agreement = sum((parameter * anchor).sum() for parameter, anchor in pairs(model, center))
            return self.criterion(model(inputs), targets).sub(agreement, alpha=self.options["correlation"])

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
        """The usual loss and the pull to the mix."""
        return self.tied(model, self.received(client))

    def round(self, clients: Sequence[int]) -> None:
        """A round, and the mixes of the client's own model and the others."""
        super().round(clients)
        models = {client: flat(state[name] for name in self.body) for client, state in self.states.items()}
        for client, state in self.states.items():
            peers = [peer for peer in models if peer != client]
            shares = self.shares(models[client], [models[peer] for peer in peers])
            own_share = 1 - shares.sum()
            for name in self.body:
                parts = [share * self.states[peer][name] for share, peer in zip(shares, peers, strict=True)]
                state[f"cloud.{name}"] = own_share * state[name] + sum(parts)

    def shares(self, model: Tensor, others: list[Tensor]) -> Tensor:
        """What others have in a client's mix: a softmax of the cosines, of what its own model leaves."""
        cosines = torch.stack([F.cosine_similarity(model, other, dim=0) for other in others])
        self_weight: float = self.options.get("self_weight", 0.5)
        attention: Tensor = (self.options.get("sigma", 10.0) * cosines).softmax(0)
        return (1 - self_weight) * attention


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


def reach_quantile(losses: Sequence[float], counts: Sequence[float], conformity: float) -> list[bool]:
    """Whether each client's loss reaches the smallest one below which there is at least 1 - conformity of the data."""
    ascending, ordered_counts = zip(*sorted(zip(losses, counts, strict=True)), strict=True)
    enough = (1 - conformity) * sum(counts) - 1e-9
    place = next(i for i, count in enumerate(accumulate(ordered_counts)) if count >= enough)
    return [loss >= ascending[place] for loss in losses]


class PlainDeltaFL(PlainLoop):
    """FedAvg of the clients with the largest losses."""

    def round(self, clients: Sequence[int]) -> None:
        """A round of the tail."""
        super().round(self.tail(clients))

    def tail(self, clients: Sequence[int]) -> list[int]:
        """The clients with the largest losses, where each weighs as many as its samples."""
        counts = [self.count(client) for client in clients]
        in_tail = reach_quantile([self.loss(client) for client in clients], counts, self.options["conformity"])
        return [client for client, reaches in zip(clients, in_tail, strict=True) if reaches]

    @torch.no_grad()
    def loss(self, client: int) -> float:
        """Mean loss of the server's model at one client."""
        self.network.eval()
        loss = self.usual_loss(self.network)(*self.data[client])
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

    def weights(self, clients: Sequence[int]) -> list[float]:
        """The same for each client."""
        return [1 / len(clients)] * len(clients)

    def before_step(self, model: nn.Module, client: int) -> None:
        """Add the server's control variate less the client's."""
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            parameter.grad += self.server[name] - self.states[client][f"control.{name}"]

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """The client's control variate."""
        steps = self.options["epochs"] * -(-self.count(client) // self.options["batch_size"])
        rate = self.options["lr"] * steps
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
    """MOON."""

    def initial_state(self, start: Tree) -> Tree:
        """The body that the client trained last."""
        return prefixed("previous", dict(list(start.items())[:-2]))  # without weight and bias of the last layer

    def loss_of(self, model: nn.Module, client: int) -> LossOf:
        """The usual loss and the contrastive term."""
        mu = self.options.get("mu", 1.0)
        temperature = self.options.get("temperature", 0.5)
        previous = copy.deepcopy(self.network)
        previous.load_state_dict(under("previous.", self.states[client]), strict=False)

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            hidden = features(model, inputs)
            with torch.no_grad():
                anchors = [features(network, inputs) for network in (self.network, previous)]
            near, far = ((torch.cosine_similarity(hidden, anchor, dim=1) / temperature).exp() for anchor in anchors)
            contrast = (near / (near + far)).log().mean()
            return self.criterion(last_layer(model)(hidden), targets).sub(contrast, alpha=mu)

        return loss

    def next_state(self, model: nn.Module, client: int) -> Tree:
        """The trained body."""
        return prefixed("previous", model.state_dict())


class PlainLGFedAvg(PlainLoop):
    """LG-FedAvg with several networks, of which clients have one each in turn, and a common head of the name ``head``.

    Args:
        networks: The networks; the server's head is that of the first one.
        others: As for ``PlainLoop``.
    """

    def __init__(self, networks: nn.ModuleList, *others: Any) -> None:
        super().__init__(networks[0], *others)
        self.networks = networks
        self.shared = ["head.weight", "head.bias"]
        self.states = {client: self.own_part(self.network_of(client)) for client in self.data}

    def network_of(self, client: int) -> nn.Module:
        """A copy of the network that a client has."""
        return copy.deepcopy(self.networks[client % len(self.networks)])

    def own_part(self, network: nn.Module) -> Tree:
        """The tensors of a network that a client keeps."""
        return {name: tensor for name, tensor in movable(network).items() if name not in self.shared}

    def received(self, client: int) -> nn.Module:
        """The client's network with the server's head."""
        model = self.network_of(client)
        head = {name: self.network.state_dict()[name] for name in self.shared}
        model.load_state_dict({**self.states[client], **head})
        self.body = list(movable(model))  # all of it moves
        return model


class PlainFedProto(PlainLoop):
    """FedProto."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's model."""
        self.shared = []
        self.prototypes = torch.zeros_like(list(start.values())[-2])  # of the head, [classes, features]
        self.counts = torch.zeros(len(self.prototypes))
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
        """The usual loss and the distance to the prototypes of classes that were seen."""
        strength = self.options.get("strength", 1.0)

        def loss(inputs: Tensor, targets: Tensor) -> Tensor:
            hidden = features(model, inputs)
            distances = (hidden - self.prototypes[targets]).square().mean(1) * (self.counts[targets] > 0)
            distance = distances.mean()
            return self.criterion(last_layer(model)(hidden), targets).add(distance, alpha=strength)

        return loss

    @torch.no_grad()
    def next_state(self, model: nn.Module, client: int) -> Tree:
        """Nothing else; add the client's features to the sums."""
        inputs, targets = self.data[client]
        self.sums.index_add_(0, targets, features(model, inputs))
        self.seen += targets.bincount(minlength=len(self.seen))
        return {}


class PlainAPFL(PlainLoop):
    """APFL, with a weight that is learned."""

    def initial_state(self, start: Tree) -> Tree:
        """The client's model and its weight in the mix."""
        weight = next(iter(start.values())).new_tensor(self.options.get("alpha", 0.5))
        return {**prefixed("personal", start), "weight": weight}

    def local_update(self, client: int) -> Tree:
        """The tensors of one client after its local training."""
        state = self.states[client]
        lr = self.options["lr"]
        weight = state["weight"]
        model, own_model, mixture = (copy.deepcopy(self.network) for _ in range(3))
        own_model.load_state_dict(under("personal.", state))
        triples = list(zip(model.parameters(), own_model.parameters(), mixture.parameters(), strict=True))
        for inputs, targets in self.batches(client, "all"):
            for server, personal, mixed in triples:
                mixed.data = weight * personal.data + (1 - weight) * server.data
            gradients = []
            for network in (model, mixture):
                loss = self.loss_of(network, client)(inputs, targets)
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
    "LGFedAvg": PlainLGFedAvg,
    "APFL": PlainAPFL,
}


def of_known_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Logistic loss: the mean over the samples with a known label of their means over known labels, -1 is unknown."""
    known = targets >= 0
    of_each = known.sum(1, keepdim=True)
    weights = known / of_each.clamp(min=1) / (of_each > 0).sum().clamp(min=1)
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), weights, reduction="sum")


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared error."""
    return F.mse_loss(outputs, targets) / 2


def of_pixels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of all pixels."""
    return F.cross_entropy(outputs, targets.long())


def of_characters(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of all characters that have a target; -100 is none."""
    total = F.cross_entropy(outputs.flatten(0, 1), targets.flatten().long(), ignore_index=-100, reduction="sum")
    return total / (targets != -100).sum()


# by the name of the task
CRITERIA: dict[str, Criterion] = {
    "Classification": F.cross_entropy,
    "MultiLabel": of_known_labels,
    "Regression": half_squared_error,
    "Segmentation": of_pixels,
    "NextToken": of_characters,
}
