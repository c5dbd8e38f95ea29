"""Arithmetic on trees: flat dictionaries of tensors, keyed by the network's own parameter names."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def select(tree: Mapping[str, Tensor], names: Iterable[str]) -> Tree:
    """The entries with these names, in the tree's order."""
    wanted = set(names)
    return {name: tensor for name, tensor in tree.items() if name in wanted}


def mix(matrix: Tensor, tree: Mapping[str, Tensor]) -> Tree:
    """Every aggregation: multiply the client axis of each tensor by one matrix.

    Args:
        matrix: Weights, ``[receivers, senders]``, or ``[senders]`` for a single receiver.
        tree: Stacked tensors, ``[senders, ...]``; integers (BatchNorm's batch counter) come back as floats.

    Returns:
        Tensors, ``[receivers, ...]``, or ``[...]`` for a single receiver.
    """
    return {name: _mix(matrix, stack.to(matrix.dtype)) for name, stack in tree.items()}


def _mix(matrix: Tensor, stack: Tensor) -> Tensor:
    if stack.ndim == 3 and stack.mT.is_contiguous():  # as the clients' matrices lie in memory: saves a copy of all
        return torch.tensordot(matrix, stack.mT, dims=1).mT
    return torch.tensordot(matrix, stack, dims=1)


class Params(NamedTuple):
    """The tensors of a cohort: what all clients share, and what is each client's own.

    Attributes:
        shared: One tensor for all clients, ``[...]``.
        own: One row per client of the cohort, ``[cohort, ...]``.
    """

    shared: Tree
    own: Tree

    def client(self, row: int) -> Tree:
        """All tensors of one client, without the cohort axis."""
        return {**self.shared, **{name: _row(stack, row) for name, stack in self.own.items()}}

    def rows(self, start: int, stop: int) -> "Params":
        """The same for a slice of the cohort."""
        return Params(self.shared, {name: stack[start:stop] for name, stack in self.own.items()})

    def select(self, names: Iterable[str]) -> "Params":
        """The tensors with these names only."""
        wanted = set(names)
        return Params(select(self.shared, wanted), select(self.own, wanted))

    def owned(self, names: Iterable[str], clients: int) -> "Params":
        """Give every client a copy of its own of the named tensors; rows that are its own already are copied too."""
        wanted = set(names)
        copies = {n: _copy(t.expand(clients, *t.shape)) for n, t in self.shared.items() if n in wanted}
        rows = {n: _copy(t) if n in wanted else t for n, t in self.own.items()}
        return Params({n: t for n, t in self.shared.items() if n not in wanted}, {**rows, **copies})


def _row(stack: Tensor, row: int) -> Tensor:
    # squeeze is a view in both directions; the gradient of an index is a zero-filled stack
    return stack.squeeze(0) if len(stack) == 1 else stack[row]


def _copy(stack: Tensor) -> Tensor:
    """A copy that aliases nothing, with matrices ``[clients, outputs, inputs]`` input-major in memory."""
    contiguous = torch.contiguous_format  # else a copy keeps the layout, and an expanded single client may be aliased
    if stack.ndim == 3:
        return stack.mT.clone(memory_format=contiguous).mT
    return stack.clone(memory_format=contiguous)
