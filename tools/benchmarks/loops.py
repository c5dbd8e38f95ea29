"""The loop over clients that everyone writes, for each method."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.workloads import RandomClients, Workload
from pfl_lightning.client import Examples
from pfl_lightning.tree import movable

State = tuple[Tensor, Tensor]  # all numbers that are shared, and all that clients keep


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
        start: dict[str, Any] = movable(network)
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
            self.train(model, received, self.head, workload.head_epochs, client)
        if workload.follows:
            copied = copy.deepcopy(received)
            self.train(model, copied, self.body, 1, client, workload.proximity)
            return copied.state_dict()
        proximity = 0.0 if workload.personal else workload.proximity
        self.train(model, received, self.body, workload.epochs, client, proximity)
        if not workload.personal:
            return {**self.kept[client], **model.state_dict()}
        personal = copy.deepcopy(self.network)
        personal.load_state_dict(under("personal.", self.kept[client]), strict=False)  # what is frozen stays
        self.train(personal, received, self.body, 1, client, workload.proximity)
        return {**model.state_dict(), **{f"personal.{name}": t for name, t in personal.state_dict().items()}}

    def received(self, client: int) -> nn.Module:
        """The server's model, the client's own mix of all models, or without a server its own model."""
        if not self.workload.attentive and not self.workload.gossip:
            return self.network
        network = copy.deepcopy(self.network)
        network.load_state_dict(under("cloud." if self.workload.attentive else "", self.kept[client]))
        return network

    def train(
        self, model: nn.Module, received: nn.Module, moves: list[str], epochs: int, client: int, proximity: float = 0.0
    ) -> None:
        """Some epochs at one client, in which only the named parameters move, tied to the received ones."""
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in moves)
        moving = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = self.optimizer(moving)
        for _ in range(epochs):
            for inputs, targets in self.batches(client):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs), targets)
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

    def batches(self, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The mini-batches of one epoch."""
        inputs, targets = self.data[client]
        for batch in torch.randperm(len(targets), device=targets.device).split(self.workload.batch_size):
            yield inputs[batch], targets[batch]

    def optimizer(self, moving: list[nn.Parameter]) -> Optimizer:
        """What takes the local steps."""
        return SGD(moving, lr=self.workload.lr, momentum=self.workload.momentum)

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


class PlainAdamW(PlainLoop):
    """FedAvg or FedRep whose clients train by AdamW."""

    def optimizer(self, moving: list[nn.Parameter]) -> Optimizer:
        """AdamW without decay."""
        return AdamW(moving, lr=self.workload.lr, weight_decay=0.0)


class Stepping(PlainLoop):
    """A loop with a step of its own."""

    def stepped(self, model: nn.Module, client: int) -> None:
        """An epoch of SGD along ``loss_of``, and what ``correct`` adds to gradients."""
        optimizer = SGD(model.parameters(), lr=self.workload.lr)
        for inputs, targets in self.batches(client):
            optimizer.zero_grad()
            self.loss_of(model, client, inputs, targets).backward()
            self.correct(model, client)
            optimizer.step()

    def loss_of(self, model: nn.Module, client: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss of a mini-batch."""
        return F.cross_entropy(model(inputs), targets)

    def correct(self, model: nn.Module, client: int) -> None:
        """Change the gradients of a step."""


class PlainScaffold(Stepping):
    """SCAFFOLD with option II."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.server = {name: torch.zeros_like(t) for name, t in self.network.named_parameters()}
        self.kept = {client: {f"control.{n}": t.clone() for n, t in self.server.items()} for client in self.data}

    def round(self, clients: Sequence[int]) -> None:
        """A round, and the server's control variate."""
        before = {client: self.kept[client] for client in clients}
        super().round(clients)
        for name, control in self.server.items():
            key = f"control.{name}"
            control += sum(self.kept[client][key] - before[client][key] for client in clients) / len(self.data)

    def local_update(self, client: int) -> dict[str, Tensor]:
        """The tensors of one client after its local training."""
        model = copy.deepcopy(self.network)
        self.stepped(model, client)
        steps = -(-len(self.data[client][1]) // self.workload.batch_size)
        controls = {
            f"control.{name}": self.kept[client][f"control.{name}"]
            - self.server[name]
            + (start.detach() - model.state_dict()[name]) / (steps * self.workload.lr)
            for name, start in self.network.named_parameters()
        }
        return {**model.state_dict(), **controls}

    def correct(self, model: nn.Module, client: int) -> None:
        """Add the server's control variate less the client's."""
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            parameter.grad += self.server[name] - self.kept[client][f"control.{name}"]


class WithFeatures(Stepping):
    """A loop that looks at the inputs of the last layer."""

    @staticmethod
    def features(model: nn.Module, inputs: Tensor) -> Tensor:
        """Inputs of the last layer."""
        found: Tensor = nn.Sequential(*list(model.children())[:-1])(inputs)
        return found


class PlainMoon(WithFeatures):
    """MOON, with mu 1 and temperature 0.5."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        start = dict(list(self.network.state_dict().items())[:-2])  # without weight and bias of the last layer
        self.kept = {client: {f"previous.{n}": t.clone() for n, t in start.items()} for client in self.data}

    def local_update(self, client: int) -> dict[str, Tensor]:
        """The tensors of one client after its local training."""
        model, self.previous = copy.deepcopy(self.network), copy.deepcopy(self.network)
        self.previous.load_state_dict(under("previous.", self.kept[client]), strict=False)
        self.stepped(model, client)
        return {**model.state_dict(), **{f"previous.{name}": t for name, t in model.state_dict().items()}}

    def loss_of(self, model: nn.Module, client: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy and the contrastive term."""
        features = self.features(model, inputs)
        with torch.no_grad():
            now, previous = (self.features(other, inputs) for other in (self.network, self.previous))
        near, far = (torch.cosine_similarity(features, other, dim=1) / 0.5 for other in (now, previous))
        outputs = list(model.children())[-1](features)
        return F.cross_entropy(outputs, targets) - (near.exp() / (near.exp() + far.exp())).log().mean()


class PlainFedProto(WithFeatures):
    """FedProto, with strength 1."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        start, self.shared = self.network.state_dict(), []
        self.kept = {client: {name: tensor.clone() for name, tensor in start.items()} for client in self.data}
        width = [tensor for tensor in start.values() if tensor.dim() == 2][-1].shape[1]
        self.prototypes = torch.zeros(self.workload.classes, width, dtype=next(iter(start.values())).dtype)
        self.counts = torch.zeros(self.workload.classes)

    def round(self, clients: Sequence[int]) -> None:
        """A round, and the prototypes of the classes that were seen."""
        self.sums, self.seen = torch.zeros_like(self.prototypes), torch.zeros_like(self.counts)
        super().round(clients)
        known = self.seen > 0
        self.prototypes[known] = self.sums[known] / self.seen[known, None]
        self.counts[known] = self.seen[known]

    def local_update(self, client: int) -> dict[str, Tensor]:
        """The tensors of one client after its local training."""
        model = copy.deepcopy(self.network)
        model.load_state_dict(self.kept[client])
        self.stepped(model, client)
        inputs, targets = self.data[client]
        with torch.no_grad():
            self.sums.index_add_(0, targets, self.features(model, inputs))
        self.seen += targets.bincount(minlength=len(self.seen))
        return model.state_dict()

    def loss_of(self, model: nn.Module, client: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy and the distance to the prototypes that are known."""
        features = self.features(model, inputs)
        near = (features - self.prototypes[targets]).square().mean(1) * (self.counts[targets] > 0)
        return F.cross_entropy(list(model.children())[-1](features), targets) + near.mean()


class PlainAPFL(Stepping):
    """APFL, with a weight of 0.5 that is learned."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        start = dict(self.network.named_parameters())
        weight = {"weight": torch.tensor(0.5, dtype=next(iter(start.values())).dtype)}
        own = {f"personal.{name}": tensor.detach().clone() for name, tensor in start.items()}
        self.kept = {client: {**own, **weight} for client in self.data}

    def local_update(self, client: int) -> dict[str, Tensor]:
        """The tensors of one client after its local training."""
        model, lr, weight = copy.deepcopy(self.network), self.workload.lr, float(self.kept[client]["weight"])
        own = {name: tensor.clone() for name, tensor in under("personal.", self.kept[client]).items()}
        for inputs, targets in self.batches(client):
            moving = dict(model.named_parameters())
            mixed = {n: weight * own[n] + (1 - weight) * t.detach() for n, t in moving.items()}
            slopes = self.gradient(model, mixed, inputs, targets)
            grads = self.gradient(model, {name: tensor.detach() for name, tensor in moving.items()}, inputs, targets)
            agreement = sum(float(((own[n] - t.detach()) * slopes[n]).sum()) for n, t in moving.items())
            for name, tensor in moving.items():
                own[name] -= lr * weight * slopes[name]
                tensor.data -= lr * grads[name]
            weight = min(max(weight - lr * agreement, 0.0), 1.0)
        personal = {f"personal.{name}": tensor for name, tensor in own.items()}
        return {**model.state_dict(), **personal, "weight": self.kept[client]["weight"].new_tensor(weight)}

    @staticmethod
    def gradient(model: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Gradient of the loss of a mini-batch at some tensors."""
        leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
        loss = F.cross_entropy(functional_call(model, leaves, (inputs,)), targets)
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


LOOPS: dict[str, type[PlainLoop]] = {
    "AdamW": PlainAdamW,
    "APFL": PlainAPFL,
    "FedProto": PlainFedProto,
    "MOON": PlainMoon,
    "SCAFFOLD": PlainScaffold,
}
