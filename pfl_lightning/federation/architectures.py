"""Clients with different networks: each trains with its own, as if the method had no others."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor, nn

from pfl_lightning.client import Engine, Examples, Loss
from pfl_lightning.errors import PflError
from pfl_lightning.federation.client_states import CLIENTS, ClientStates, checked_rows
from pfl_lightning.federation.cohort import Group, Groups, all_at_once
from pfl_lightning.federation.pretrained import take_weights
from pfl_lightning.federation.uploads import first_memory
from pfl_lightning.models import Architectures, Network, Parts
from pfl_lightning.threads import with_lock
from pfl_lightning.tree import Tree, movable, select

UNEVEN = 1.25  # most work of one network that may be a thread's, as a multiple of the thread's share
ATTRIBUTES = ("network", "engine", "parts", "kept", "clients")  # of a method that are one network's


class Architecture(NamedTuple):
    """A network, and the clients that have it.

    Attributes:
        network: The network; what is shared are the server's own tensors.
        engine: Runs the local work of these clients.
        parts: Names of the tensors of each part.
        kept: Names of the tensors that these clients keep.
        clients: What they keep.
        sizes: Bytes of each tensor of one client, and of the outputs for one sample.
        members: The clients, rising.
    """

    network: Network
    engine: Engine
    parts: Parts
    kept: frozenset[str]
    clients: ClientStates
    sizes: Sequence[int]
    members: Tensor


def build_architectures(
    method: Any, networks: Architectures, seed: int, weights: Tree | None, loss: Loss | None, output_bytes: int
) -> list[Architecture]:
    """Give a method its networks, and what goes with each of them; afterwards it has the first one.

    Args:
        method: The method.
        networks: The networks.
        seed: Seed of the initial states.
        weights: Tensors of a file that the network starts with.
        loss: The method's own loss.
        output_bytes: Bytes of the outputs for one sample.

    Raises:
        PflError: If a network does not fit the method or the backend, or what is shared differs between them.
    """
    if len(networks) > 1:
        check_options(method)
    architectures: list[Architecture] = []
    states: list[Tree] = []
    for number, members in enumerate(networks.members(method.num_clients)):
        network = cast(Network, networks[number])
        _take_network(method, network, weights, loss)
        tensors = movable(network)
        if len(networks) > 1:
            states.append(method.server_state(tensors))
        if architectures:
            first = architectures[0]
            _check_alike(method, first.network, _shared(first), select(network.state_dict(), method.shared))
            _check_alike(method, first.network, states[0], states[-1])
            _tie(network, first.network, method.shared)
        start = checked_rows(method.initial_state(tensors, len(members), seed), len(members))
        start = {**start, **first_memory(method, tensors, len(members))}
        method.clients = MemberStates(start, members, number) if len(networks) > 1 else ClientStates(start)
        own = {name: stack[0] for name, stack in start.items()}
        sizes = [*(tensor.nbytes for tensor in {**tensors, **own}.values()), output_bytes]
        architectures.append(Architecture._make([*_get(method), sizes, members]))
    _set(method, architectures[0])
    if len(networks) > 1:
        method.clients = SeveralStates(architectures)
        method.other_networks = nn.ModuleList(architecture.network for architecture in architectures[1:])
    return architectures


def check_options(method: Any) -> None:
    """Refuse what a method with several networks cannot have.

    Raises:
        PflError: If it has that.
    """
    name = type(method).__name__
    for option in ("adapter", "pretrained"):
        if getattr(method, option) is not None:
            raise PflError(f"model.{option} must be null with Architectures, got {getattr(method, option)}")
    if method.mixes != "nothing":
        raise PflError(
            f"model.network: Architectures is not possible with {name}, whose clients mix their models; allowed: one "
            "network, or a method such as FedProto"
        )


def _take_network(method: Any, network: Network, weights: Tree | None, loss: Loss | None) -> None:
    """Give a method a network, and what goes with it; arguments as for ``build_architectures``."""
    method.network = network
    method.engine = Engine(network, method.backend, method.chunk_size, method.progress.add, method.task, loss)
    method.parts = network.parts(method.head)
    method.engine.head = method.parts["head"] | network.extension
    if weights is not None:
        method.pretrained_report = take_weights(network, weights, method.parts["head"], str(method.pretrained))
    name = type(method).__name__
    cuts = {method.keeps, method.trains, method.mixes} & {"head", "body"}
    if cuts and not method.parts["body"]:
        raise PflError(f"model.network: {name} needs a body; {network.kind} trains one layer")
    if (cuts or network.extension or {*method.needs} & {"features", "head"}) and not method.parts["head"]:
        reason = f"{network.kind} has none that trains{' beside adapters' * (method.adapter is not None)}"
        raise PflError(f"model.network: {name} needs a head; {reason}; allowed: another method, such as FedAvg")
    if network.extension or "features" in method.needs:
        method.engine.body_layers()  # or it is refused
    statistics = method.parts["all"] - method.engine.trainable
    method.kept = method.parts[method.keeps] | (statistics if method.batch_norm == "local" else frozenset())
    method.shared = method.parts["all"] - method.kept


def _shared(architecture: Architecture) -> Tree:
    """The shared tensors of a network."""
    return select(architecture.network.state_dict(), architecture.parts["all"] - architecture.kept)


def _check_alike(method: Any, first: Network, shared: Tree, others: Tree) -> None:
    """Refuse tensors with the server that are others in the network of a method than in its first one.

    Raises:
        PflError: If they are.
    """
    for name in sorted(shared.keys() | others.keys()):
        shapes = [[*tree[name].shape] if name in tree else "missing" for tree in (shared, others)]
        if shapes[0] != shapes[1]:
            kinds = f"{shapes[0]} in {first.kind} and {shapes[1]} in {method.network.kind}"
            raise PflError(
                f"model.network: {type(method).__name__} shares {name}, which is {kinds}; allowed: networks that have "
                "in common what is shared, see model.network.width and model.head, or a method that shares no part of "
                "them, such as FedProto"
            )


def _tie(network: Network, first: Network, shared: Collection[str]) -> None:
    """Make the shared tensors of a network those of the first one, which the server steps.

    Raises:
        PflError: If there are statistics of BatchNorm among them.
    """
    parameters = dict(first.named_parameters())
    for name in shared:
        if name not in parameters:
            raise PflError(
                f"model.batch_norm must be local with Architectures, whose networks share {name}, got average"
            )
        path, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(path), leaf, parameters[name])


def _get(method: Any) -> tuple[Any, ...]:
    """What one of the networks of a method goes with."""
    return tuple(getattr(method, name) for name in ATTRIBUTES)


def _set(method: Any, values: Sequence[Any]) -> None:
    """Give a method what one of its networks goes with: what ``_get`` returns, or an ``Architecture``."""
    for name, value in zip(ATTRIBUTES, values, strict=False):
        setattr(method, name, value)


@contextmanager
def having(method: Any, architecture: Architecture) -> Iterator[None]:
    """Meanwhile a method has this network alone."""
    before = _get(method)
    _set(method, architecture)
    try:
        yield
    finally:
        _set(method, before)


def split_for_threads(method: Any, cohort: Examples) -> list[Any]:
    """The method with each of its networks alone, if these train at the same time; else the method itself.

    On a CPU a thread for each network is faster than all threads for one network after another, whose few clients do
    not keep them busy. That holds where clients train one at a time, there are at least as many networks as threads,
    and no network is much more work than a thread's share.

    Args:
        method: The method.
        cohort: Examples of the clients that are to train.
    """
    threads = torch.get_num_threads()
    if method.device.type != "cpu" or len(method.architectures) < max(threads, 2):
        return [method]
    costs = method.cohort.costs(cohort)
    if max(costs) * threads > UNEVEN * sum(costs):
        return [method]
    methods = [_alone(method, architecture) for architecture in method.architectures]
    return methods if all(own.engine.uses_threads(own.phase(own.trains)) for own in methods) else [method]


def _alone(method: Any, architecture: Architecture) -> Any:
    """The method with one of its networks, for another thread; it shares everything else with the method."""
    alone = object.__new__(type(method))
    vars(alone).update(vars(method), _modules=dict(method._modules))
    _set(alone, architecture)
    alone.engine = architecture.engine.on(alone.network)
    alone.engine.report = with_lock(alone.engine.report)
    return alone


@contextmanager
def network_of(method: Any, client: int) -> Iterator[None]:
    """Meanwhile a method has the network of this client alone."""
    if len(method.architectures) == 1:
        yield
        return
    (architecture,) = (each for each in method.architectures if client in each.members)
    with having(method, architecture):
        yield


def networks_report(method: Any) -> str:
    """A line that says how many clients have which network; empty if all have the same one."""
    if len(method.architectures) == 1:
        return ""
    parts = [
        f"{len(own.members)} clients have {own.network.kind} with "
        f"{sum(parameter.numel() for parameter in own.network.parameters()):,} parameters"
        for own in method.architectures
    ]
    return f"model.network: {', '.join(parts)}"


def groups_of(method: Any) -> Groups:
    """Lets the clients of each network work together, while the method has it; see ``Cohort``."""
    if len(method.architectures) == 1:
        return all_at_once
    numbers = torch.zeros(method.num_clients, dtype=torch.int64)
    for number, architecture in enumerate(method.architectures):
        numbers[architecture.members] = number

    def groups(ids: Tensor) -> Iterator[Group]:
        for number, architecture in enumerate(method.architectures):
            yield partial(having, method, architecture), (numbers[ids] == number).nonzero()[:, 0]

    return groups


class MemberStates(ClientStates):
    """What the clients of one of several networks keep.

    Args:
        start: What they begin with, ``[members, ...]``; it is copied.
        members: The clients, rising; a row is found by its client's place among them.
        number: Number of the network.
    """

    def __init__(self, start: Mapping[str, Tensor], members: Tensor, number: int) -> None:
        super().__init__(start, f"{CLIENTS}.of.{number}", members)
        self.members = members

    def gather(self, ids: Tensor) -> Tree:
        """See ``ClientStates``."""
        return super().gather(self._rows(ids))

    def scatter(self, ids: Tensor, rows: Mapping[str, Tensor]) -> None:
        """See ``ClientStates``."""
        super().scatter(self._rows(ids), rows)

    @contextmanager
    def placed(self, clients: Sequence[Tensor], changes: bool) -> Iterator[None]:
        """See ``ClientStates``; clients of other networks are left out."""
        own = [ids[torch.isin(ids, self.members)] for ids in clients]
        with super().placed([*map(self._rows, own)], changes):
            yield

    def _rows(self, ids: Tensor) -> Tensor:
        """The rows of some of these clients."""
        return torch.searchsorted(self.members.to(ids.device), ids)


class SeveralStates(ClientStates):
    """What all clients keep, where these have different networks; of tensors of one shape all rows can be read.

    Args:
        architectures: The networks.
    """

    def __init__(self, architectures: Sequence[Architecture]) -> None:
        super().__init__({})
        self.architectures = architectures
        self.parts = [architecture.clients for architecture in architectures]
        self.shard.clients = sum(len(architecture.members) for architecture in architectures)
        self.names = sorted({name for states in self.parts for name in states.names})

    def stack(self, name: str) -> Tensor:
        """The rows of all clients of this process, ``[own clients, ...]``; a copy.

        Raises:
            PflError: If not all clients keep such a tensor, or it differs in shape.
        """
        self._check_readable()
        stacks = [states.stack(name) for states in self.parts if name in states.names]
        if len(stacks) < len(self.parts) or len({stack.shape[1:] for stack in stacks}) > 1:
            self._refuse(name)
        ids = torch.cat([each.members[each.clients.shard.ids()] for each in self.architectures])
        return torch.cat(stacks)[ids.argsort().to(stacks[0].device)]

    def mix(self, *_: object, **__: object) -> NoReturn:
        """Refuse to mix rows.

        Raises:
            PflError: Always.
        """
        self._refuse("models")

    def _refuse(self, what: str) -> NoReturn:
        raise PflError(
            f"model.network: Architectures is not possible with a rule, or a callback, that compares or mixes {what} "
            "of clients; allowed: one network"
        )

    def first(self, names: Iterable[str]) -> Tree:
        """Copies of the first client's tensors, ``[...]``."""
        return {name: self.stack(name)[0] for name in names}

    @property
    def nbytes(self) -> int:
        """See ``ClientStates``."""
        return sum(states.nbytes for states in self.parts)

    def gather(self, ids: Tensor) -> Tree:
        """See ``ClientStates``; all of them must have the same network."""
        return self._of(ids).gather(ids)

    def scatter(self, ids: Tensor, rows: Mapping[str, Tensor]) -> None:
        """See ``ClientStates``; all of them must have the same network."""
        self._of(ids).scatter(ids, rows)

    @contextmanager
    def placed(self, clients: Sequence[Tensor], changes: bool) -> Iterator[None]:
        """See ``ClientStates``."""
        with ExitStack() as stack:
            for states in self.parts:
                stack.enter_context(states.placed(clients, changes))
            yield

    def save(self, checkpoint: dict[str, Any]) -> None:
        """See ``ClientStates``."""
        for states in self.parts:
            states.save(checkpoint)

    def load(self, checkpoint: dict[str, Any]) -> None:
        """See ``ClientStates``."""
        for states in self.parts:
            states.load(checkpoint)

    def _save_to_state_dict(self, destination: Tree, prefix: str, keep_vars: bool) -> None:
        for number, states in enumerate(self.parts):
            states._save_to_state_dict(destination, f"{prefix}of.{number}.", keep_vars)

    def _load_from_state_dict(self, state_dict: Tree, prefix: str, *further: object) -> None:
        for number, states in enumerate(self.parts):
            states._load_from_state_dict(state_dict, f"{prefix}of.{number}.", *further)

    def _of(self, ids: Tensor) -> ClientStates:
        """What clients keep that have the network of these."""
        found = [each.clients for each in self.architectures if torch.isin(ids.cpu(), each.members).all()]
        if not found:
            self._refuse("what is kept")
        return found[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SeveralStates":
        for states in self.parts:
            states._apply(fn, recurse)
        return self
