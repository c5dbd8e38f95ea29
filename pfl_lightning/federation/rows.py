from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pfl_lightning import processes
from pfl_lightning.tree import Tree

LARGEST_AT_ONCE = 1 << 30  # bytes of rows in a process that take their memory at once, changed or not


class Rows:
    """One row of each tensor for every client; those of client ``i`` are in process ``i % processes``.

    Where they begin alike, rows that have not changed are one row. They take their memory at the first change, all of
    them at once; if they are many and on a CPU, each for itself: of a block of memory that is not initialised, the
    system provides what is written.

    Args:
        start: What clients begin with, ``[clients, ...]`` each. Where it is one row for all, that row is copied.

    Attributes:
        start: The same; empty if all rows have their memory.
        names: Names of the tensors.
        clients: Number of clients, those of other processes included.
        own: The rows of this process, ``[own clients, ...]`` each; empty before the first change.
        changed: Which of these have changed, ``[own clients]``, on the CPU; None if all have their memory.
    """

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        self.start = {name: _along_clients(torch.clone, stack) for name, stack in start.items()}
        self.names = list(start)
        self.clients = min(map(len, start.values()), default=0)
        self.own: Tree = {}
        self.changed: Tensor | None = None

    def ids(self) -> Tensor:
        """The clients whose rows this process has, ``[own clients]``, on the CPU."""
        return torch.arange(self.clients)[processes.rank() :: processes.count()]

    def read(self, name: str, ids: Tensor) -> Tensor:
        """Copy rows of some clients of this process, ``[ids, ...]``; before the first change, of any clients."""
        if not self.own:
            return self.start[name].index_select(0, ids.to(self.start[name].device))
        places = ids // processes.count()
        rows = self.own[name].index_select(0, places.to(self.own[name].device))
        if self.changed is not None:
            rows[~self.changed[places]] = self.start[name][0]
        return rows

    def write(self, rows: Mapping[str, Tensor], ids: Tensor) -> None:
        """Store rows of some clients of this process in place; the cost depends on their number only."""
        self.begin()
        places = ids // processes.count()
        for name in self.names:
            self.own[name].index_copy_(0, places.to(self.own[name].device), rows[name])
        if self.changed is not None:
            self.changed[places] = True

    def begin(self) -> None:
        """Give the rows their memory, or, if they are many, only a place in memory."""
        if self.own or not self.names:
            return
        own = {name: stack[processes.rank() :: processes.count()] for name, stack in self.start.items()}
        at_once = sum(stack.nbytes for stack in self.start.values()) // processes.count() <= LARGEST_AT_ONCE
        if at_once or not all(stack.is_cpu and _is_one_row(stack) for stack in self.start.values()):
            self.own = {name: stack.clone(memory_format=torch.contiguous_format) for name, stack in own.items()}
            self.start = {}
        else:
            self.own = {name: stack.new_empty(stack.shape) for name, stack in own.items()}
            self.changed = torch.zeros(len(self.ids()), dtype=torch.bool)

    def fill(self) -> Tree:
        """Give all rows their memory, and return them."""
        self.begin()
        if self.changed is not None:
            for name, stack in self.own.items():
                stack[~self.changed] = self.start[name][0]
            self.start, self.changed = {}, None
        return self.own

    def changed_rows(self) -> tuple[Tensor, Tree]:
        """Ids of the clients of this process whose rows may have changed, rising, and these rows; no copies if all."""
        if self.changed is None:
            return self.ids(), self.own
        return self.ids()[self.changed], {name: stack[self.changed] for name, stack in self.own.items()}

    def apply(self, function: Callable[[Tensor], Tensor]) -> None:
        """Convert all rows, for example to another device."""
        self.start = {name: _along_clients(function, stack) for name, stack in self.start.items()}
        if not all(stack.is_cpu for stack in self.start.values()):
            self.fill()
        self.own = {name: function(stack) for name, stack in self.own.items()}


def _is_one_row(stack: Tensor) -> bool:
    return len(stack) > 1 and stack.stride(0) == 0


def _along_clients(function: Callable[[Tensor], Tensor], stack: Tensor) -> Tensor:
    """Convert a stack, ``[clients, ...]``, which stays one row if it is."""
    return function(stack[0]).expand_as(stack) if _is_one_row(stack) else function(stack)
