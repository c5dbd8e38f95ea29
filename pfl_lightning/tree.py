"""Arithmetic on trees: flat dictionaries of tensors, keyed by parameter name."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

Tree = dict[str, Tensor]
CONSTANTS = "constant_buffers"  # attribute of a layer: names of its constant buffers
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)  # layers with running statistics


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A short text that differs for tensors with other names, types, shapes or numbers, in this order."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def movable(module: nn.Module) -> Tree:
    """The tensors of a module that training may change, by name, ``[...]`` each; no copies.

    All others are frozen: parameters with ``requires_grad=False``, buffers of layers that have no other parameters, and
    ``constants``. They are in no tree, and all clients use those of the module. Tied parameters are one tensor, with
    its first name.
    """
    frozen = {id(parameter) for parameter in module.parameters() if not parameter.requires_grad}
    for layer in module.modules():
        parameters = {id(parameter) for parameter in layer.parameters(recurse=False)}
        frozen |= {id(buffer) for buffer in layer.buffers(recurse=False) if parameters and parameters <= frozen}
    frozen |= {id(module.get_buffer(name)) for name in constants(module)}
    tensors = module.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(tensors.items())}
    return {n: t.detach() for n, t in tensors.items() if first[id(t)] == n and id(t) not in frozen}


def constants(module: nn.Module) -> set[str]:
    """Names of the buffers of a module that are the same for ever, such as masks; ``start_network`` marks them."""
    layers = module.named_modules()
    return {f"{path}.{name}".removeprefix(".") for path, layer in layers for name in constants_of(layer)}


def constants_of(layer: nn.Module) -> list[str]:
    """The names of the constant buffers of a layer, without those of the layers inside."""
    names: list[str] = vars(layer).get(CONSTANTS, [])
    return names


def select(tree: Mapping[str, Tensor], names: Iterable[str]) -> Tree:
    """The entries with these names, in the tree's order."""
    wanted = set(names)
    return {name: tensor for name, tensor in tree.items() if name in wanted}


def mix(matrix: Tensor, tree: Mapping[str, Tensor]) -> Tree:
    """Multiply the client axis of each tensor by a matrix. Every aggregation is of this form.

    Args:
        matrix: Weights, ``[receivers, senders]``, or ``[senders]`` for a single receiver.
        tree: Stacked tensors, ``[senders, ...]``; integers (BatchNorm's batch counter) come back as floats.

    Returns:
        Tensors, ``[receivers, ...]``, or ``[...]`` for a single receiver.
    """
    with torch.autocast(matrix.device.type, enabled=False):  # mixed precision must not apply to averages
        return {name: torch.tensordot(matrix, stack.to(matrix.dtype), dims=1) for name, stack in tree.items()}


def assign(tensor: Tensor, values: Tensor) -> None:
    """Overwrite a tensor with a mean; integers, such as BatchNorm's batch counter, become the nearest."""
    tensor.copy_(values if tensor.is_floating_point() else values.round())


def prefixed(prefix: str, tree: Mapping[str, Tensor]) -> Tree:
    """The same tensors under a prefix, such as ``personal.fc1.weight`` with ``personal``."""
    return {f"{prefix}.{name}": tensor for name, tensor in tree.items()}


def repeated(tree: Mapping[str, Tensor], clients: int) -> Tree:
    """The same tensors for each of some clients, ``[clients, ...]``; no copies."""
    return {name: tensor.expand(clients, *tensor.shape) for name, tensor in tree.items()}


def zeros_like(tree: Mapping[str, Tensor]) -> Tree:
    """Zeros of the same shapes, types and devices."""
    return {name: torch.zeros_like(tensor) for name, tensor in tree.items()}


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which many numbers of some type are added up: float32 for those that are shorter."""
    return torch.promote_types(dtype, torch.float32)


def wide(values: Tensor, like: Tensor) -> Tensor:
    """One value for each client, ``[clients]``, reshaped to be multiplied with a stack, ``[clients, ...]``."""
    return values.view(-1, *[1] * (like.dim() - 1))


def add_to(total: Tree, tree: Mapping[str, Tensor]) -> None:
    """Add a tree to a running sum of trees, which may be empty, without changing tensors in place."""
    for name, tensor in tree.items():
        total[name] = total[name] + tensor if name in total else tensor


class Params(NamedTuple):
    """The tensors of a cohort: some that all clients share, and some of which each client has its own.

    Attributes:
        shared: One tensor for all clients, ``[...]``.
        own: One row per client of the cohort, ``[cohort, ...]``.
    """

    shared: Tree
    own: Tree

    @property
    def tree(self) -> Tree:
        """All tensors by name."""
        return {**self.shared, **self.own}

    def client(self, row: int) -> Tree:
        """All tensors of one client, without the cohort axis."""
        return {**self.shared, **{name: _row(stack, row) for name, stack in self.own.items()}}

    def rows(self, start: int, stop: int) -> "Params":
        """The same for a slice of the cohort."""
        return self.take(slice(start, stop))

    def take(self, places: Tensor | slice) -> "Params":
        """The same for the clients at these positions in the cohort."""
        return Params(self.shared, {name: stack[places] for name, stack in self.own.items()})

    def select(self, names: Iterable[str]) -> "Params":
        """The tensors with these names only."""
        wanted = set(names)
        return Params(select(self.shared, wanted), select(self.own, wanted))

    def without(self, names: Iterable[str]) -> "Params":
        """All tensors except those with these names."""
        return self.select(self.tree.keys() - set(names))

    def under(self, prefix: str) -> "Params":
        """The tensors with a prefix, such as ``personal`` for ``personal.fc1.weight``, without this prefix."""
        begin = f"{prefix}."
        return Params(*({n.removeprefix(begin): t for n, t in tree.items() if n.startswith(begin)} for tree in self))

    def beside(self, prefix: str, params: "Params") -> "Params":
        """Add other tensors under a prefix, replacing all tensors with that prefix; nothing is copied."""
        begin = f"{prefix}."
        rest = self.select(name for name in self.tree if not name.startswith(begin))
        return Params(*({**tree, **prefixed(prefix, added)} for tree, added in zip(rest, params, strict=True)))

    def room(self, names: Iterable[str], clients: int) -> Tree:
        """Allocate uninitialised rows for some tensors, ``[clients, ...]``, in the order of their names."""
        shapes = {**{n: t[0] for n, t in self.own.items()}, **self.shared}
        return {name: shapes[name].new_empty(clients, *shapes[name].shape) for name in sorted(names)}

    def moved_to(self, rows: Tree) -> "Params":
        """Copy the tensors named in ``rows`` to these rows, one per client; the result has them as the clients' own."""
        for name, row in rows.items():
            row.copy_(self.own[name] if name in self.own else self.shared[name])
        return self.with_own(rows)

    def with_own(self, rows: Tree) -> "Params":
        """Replace or add tensors that are the clients' own, ``[cohort, ...]``; nothing is copied."""
        return Params({n: t for n, t in self.shared.items() if n not in rows}, {**self.own, **rows})

    def owned(self, names: Iterable[str], clients: int) -> "Params":
        """Give every client its own copy of the named tensors, even of those that are its own already."""
        return self.moved_to(self.room(names, clients))


def _row(stack: Tensor, row: int) -> Tensor:
    # squeeze is a view in the backward pass, too, where indexing fills a whole stack with zeros
    return stack.squeeze(0) if len(stack) == 1 else stack[row]
