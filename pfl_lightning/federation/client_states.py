"""What each client keeps between rounds: one row of each tensor for every client, spread over the processes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pfl_lightning import processes
from pfl_lightning.errors import PflError
from pfl_lightning.tree import Tree, repeated, select

CLIENTS = "clients"  # prefix of the rows in a checkpoint, and entry that says whose they are if these are not all
LARGEST_AT_ONCE = 1 << 30  # bytes of rows in a process that are filled on allocation
# size of the blocks in which a stack is mixed or measured: on a CPU they stay in its cache
CPU_BLOCK_BYTES = 1 << 20
DEVICE_BLOCK_BYTES = 64 << 20


class ClientStates(nn.Module):
    """The tensors that every client keeps: one row for each client, under the network's own names.

    With several processes, each stores the rows of some clients (``Shard``); during a round, rows are ``placed`` in the
    process that trains their clients. All processes call every method together, but for ``gather`` and ``scatter``.

    Args:
        start: What clients begin with, ``[clients, ...]``; it is copied.
        key: What begins the names of the rows in a checkpoint.
        members: See ``Shard``.
    """

    def __init__(self, start: Mapping[str, Tensor], key: str = CLIENTS, members: Tensor | None = None) -> None:
        super().__init__()
        self.shard = Shard(start, members)
        self.key = key
        self.names = list(start)
        self._placed: tuple[Tensor, Tree] | None = None  # ids, rising, and rows of the clients that train here
        self._refusal = ""  # why the server may not read rows at the moment

    @contextmanager
    def forbid_server_reads(self, refusal: str) -> Iterator[None]:
        """Refuse to read any rows within this block, with this message; an empty one forbids nothing."""
        self._refusal = refusal
        try:
            yield
        finally:
            self._refusal = ""

    def _check_readable(self) -> None:
        if self._refusal:
            raise PflError(self._refusal)

    def stack(self, name: str) -> Tensor:
        """The rows of all clients of this process, ``[own clients, ...]``; not a copy."""
        self._check_readable()
        return self.shard.fill()[name]

    def first(self, names: Iterable[str]) -> Tree:
        """Copies of the first client's tensors, ``[...]``; between rounds the first process has them, and it alone."""
        self._check_readable()
        return {name: self.shard.read(name, torch.zeros(1, dtype=torch.int64))[0] for name in names}

    @property
    def nbytes(self) -> int:
        """Bytes of the rows of this process."""
        stacks = (self.shard.own or self.shard.start).values()
        return len(self.shard.ids()) * sum(stack.shape[1:].numel() * stack.element_size() for stack in stacks)

    def gather(self, ids: Tensor) -> Tree:
        """Copy the rows of some clients: of any that are placed here, or else of those that this process stores."""
        self._check_readable()
        if self._placed is None:
            return {name: self.shard.read(name, ids) for name in self.names}
        placed_ids, rows = self._placed
        places = torch.searchsorted(placed_ids, ids)
        return {name: rows[name].index_select(0, places) for name in self.names}

    @torch.no_grad()
    def scatter(self, ids: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Store rows of clients that ``gather`` can copy, in place; the cost depends on their number only."""
        if self._placed is None:
            self.shard.write(rows, ids)
            return
        placed_ids, placed_rows = self._placed
        for name in self.names:
            placed_rows[name].index_copy_(0, torch.searchsorted(placed_ids, ids), rows[name])

    @contextmanager
    def placed(self, clients: Sequence[Tensor], changes: bool) -> Iterator[None]:
        """Place the rows of clients in the processes that train them.

        Args:
            clients: For each process the clients that it trains, ``[ids]`` each, on the CPU; each client once.
            changes: Whether their rows may change; these are stored when the block ends without an error.
        """
        if processes.count() == 1 or not self.names:
            yield
            return
        # those of each process's clients whose rows are stored in this one
        stored = [ids[self.shard.owners(ids) == processes.rank()] for ids in clients]
        owners = self.shard.owners(clients[processes.rank()])
        arriving = owners.bincount(minlength=processes.count()).tolist()
        placed_ids, order = clients[processes.rank()][owners.argsort(stable=True)].sort()
        rows = {}
        for name in self.names:
            arrived = processes.all_to_all([self.shard.read(name, ids) for ids in stored], arriving)
            rows[name] = arrived[order.to(arrived.device)]
            placed_ids = placed_ids.to(arrived.device)
        self._placed = placed_ids, rows
        try:
            yield
        finally:
            self._placed = None
        if changes:
            returning = order.argsort().split(arriving)
            changed = {
                name: processes.all_to_all(
                    [stack[places.to(stack.device)] for places in returning], list(map(len, stored))
                )
                for name, stack in rows.items()
            }
            self.shard.write(changed, torch.cat(stored))

    @torch.no_grad()
    def mix(
        self, matrix: Tensor, names: Iterable[str], into: str = "", ids: Tensor | None = None, masks: str = ""
    ) -> None:
        """Replace clients' rows by weighted combinations of their rows, as in gossip or attention.

        Call it between rounds, for example in ``server_update``. Within a round, clients that have not trained yet
        would start from mixed rows, and the result would depend on the chunk size. Integers, such as BatchNorm's
        counters, stay as they are.

        Args:
            matrix: Weights, ``[receivers, senders]``; both axes are the clients ``ids``.
            names: Tensors to mix.
            into: Prefix of the tensors that receive the result, such as ``cloud``. By default the rows are
                overwritten, block by block, so that no second copy is needed.
            ids: The clients that mix, rising, on the CPU, ``[clients]``; by default all of them.
            masks: Prefix of boolean masks outside of which the tensors are zero, such as ``mask``. Then each entry is
                mixed among the clients that hold it: ``mask_i (sum_j matrix_ij row_j) / (sum_j matrix_ij mask_j)``.
        """
        senders = Exchange(matrix, ids)
        for name in sorted(names):
            source = self._matrix(name)
            target = self._matrix(f"{into}.{name}" if into else name)
            weights = senders.weights.to(source, non_blocking=True)
            for block in self._blocks(source) if source.is_floating_point() else ():
                with torch.autocast(source.device.type, enabled=False):  # mixed precision must not apply to mixes
                    mixed = weights @ senders.rows(source[:, block])
                    if masks:
                        mask = self._matrix(f"{masks}.{name}")[:, block]
                        share = weights @ senders.rows(mask).to(source)
                        mixed = (mixed / share.where(share != 0, 1)).where(mask[senders.receivers], 0)
                target[senders.receivers, block] = mixed

    @torch.no_grad()
    def inner_products(self, names: Iterable[str], ids: Tensor | None = None) -> Tensor:
        """Inner products between clients' rows, summed over some tensors block by block.

        Args:
            names: Tensors of real numbers; their order decides about the last digits.
            ids: The clients, on the CPU, ``[clients]``; by default all of them.

        Returns:
            Float64, ``[clients, clients]``.
        """
        selected: slice | Tensor = slice(None)
        stored: slice | Tensor = slice(processes.rank(), None, processes.count())  # in this process, of those selected
        if ids is not None:
            selected = ids
            stored = ids % processes.count() == processes.rank()
        clients = self._count(ids)
        products = torch.zeros(clients, clients, dtype=torch.float64)
        for matrix in map(self._matrix, names):
            products = products.to(matrix.device)
            for block in self._blocks(matrix):
                rows = all_rows(matrix[:, block], self.shard.clients)[selected].double()
                products[stored] += rows[stored] @ rows.T
        return processes.all_reduce({"": products})[""]

    @torch.no_grad()
    def spread(self, names: Iterable[str], ids: Tensor | None = None) -> Tensor:
        """Mean over the clients of the squared distance to their mean; 0 if all are equal.

        Args:
            names: Tensors of real numbers, seen as one vector.
            ids: The clients, on the CPU, ``[clients]``; by default all of them.

        Returns:
            Float64 scalar.
        """
        places = self._places(ids)
        distances = []
        for name, mean in self.mean(names, ids).items():
            matrix = self._matrix(name)
            center = mean.flatten()
            parts = (matrix[:, block][places] - center[block] for block in self._blocks(matrix))
            distances += [torch.linalg.vector_norm(part) / self._count(ids) ** 0.5 for part in parts]
        return processes.all_reduce({"": torch.stack(distances).double().square().sum()})[""]

    @torch.no_grad()
    def mean(self, names: Iterable[str], ids: Tensor | None = None) -> Tree:
        """Mean over some clients, on the CPU, ``[clients]``, or over all; integers come back as floats."""
        places = self._places(ids)
        sums = {}
        for name in sorted(names):
            stack = self.stack(name)
            matrix = self._matrix(name)
            dtype = stack.dtype if stack.is_floating_point() else torch.get_default_dtype()
            parts = [matrix[:, block][places].sum(0, dtype=dtype) for block in self._blocks(matrix)]
            sums[name] = torch.cat(parts).view(stack.shape[1:])
        return {name: total / self._count(ids) for name, total in processes.all_reduce(sums).items()}

    def _count(self, ids: Tensor | None) -> int:
        """Number of some clients, or of all."""
        return self.shard.clients if ids is None else len(ids)

    def _matrix(self, name: str) -> Tensor:
        """A view of the rows of this process as a matrix, ``[own clients, entries]``."""
        stack = self.stack(name)
        return stack.view(len(stack), prod(stack.shape[1:]))

    def _blocks(self, matrix: Tensor) -> Iterator[slice]:
        """Parts of the columns of a matrix that are worked on at once, the same in all processes."""
        fits_cache = matrix.is_cpu and processes.count() == 1  # between processes larger blocks take fewer messages
        size = CPU_BLOCK_BYTES if fits_cache else DEVICE_BLOCK_BYTES
        rows = -(-self.shard.clients // processes.count())
        width = max(1, size // (matrix.element_size() * rows))
        return (slice(start, start + width) for start in range(0, matrix.shape[1], width))

    def _places(self, ids: Tensor | None) -> slice | Tensor:
        """The rows, among those of this process, of some clients or of all."""
        return slice(None) if ids is None else ids[ids % processes.count() == processes.rank()] // processes.count()

    # Lightning's side: moving, saving, loading

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ClientStates":
        self.shard.apply(fn)
        return self

    def _save_to_state_dict(self, destination: Tree, prefix: str, keep_vars: bool) -> None:
        self.shard.begin()
        if self.shard.changed is None:
            destination.update({prefix + name: stack for name, stack in self.shard.own.items()})

    def _load_from_state_dict(self, state_dict: Tree, prefix: str, *_: object) -> None:
        for name in self.names:
            if prefix + name in state_dict:
                self.stack(name).copy_(state_dict[prefix + name])

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Put the rows of all clients into a checkpoint, as if there were one process; only the first one has them.

        Where rows are filled as they change, the checkpoint has those that have, ``[changed, ...]``; its
        entry ``clients`` has the ``ids`` of their clients, and the row that all others ``start`` with.
        """
        if not self.names:
            return
        self.shard.begin()
        ids, changed = self.shard.changed_rows()
        peers = processes.count() - 1
        arriving = processes.all_gather(len(ids))
        if processes.rank() > 0:
            arriving = [0] * len(arriving)
        ids = processes.all_to_all([ids, *[ids[:0]] * peers], arriving)
        order = ids.argsort()
        for name, rows in changed.items():
            arrived = processes.all_to_all([rows, *[rows[:0]] * peers], arriving)
            checkpoint["state_dict"][f"{self.key}.{name}"] = arrived[order.to(arrived.device)] if peers else arrived
        if self.shard.changed is not None:
            start = {name: stack[0].clone() for name, stack in self.shard.start.items()}
            checkpoint[self.key] = {"ids": ids[order], "start": start}

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Take from a checkpoint the rows that ``save`` put there; each process those of its clients.

        Raises:
            KeyError: If the checkpoint lacks something.
            ValueError: If it has rows of other shapes or types, or of other clients.
        """
        rows = {name: checkpoint["state_dict"].pop(f"{self.key}.{name}") for name in self.names}
        if self.key in checkpoint:
            ids = checkpoint[self.key]["ids"]
            start = checkpoint[self.key]["start"]
            self._check({name: start[name][None] for name in self.names}, torch.zeros(1))
            self._check(rows, ids)
            stored = self.shard.owners(ids) == processes.rank()
            self.shard = Shard(repeated(select(start, rows), self.shard.clients), self.shard.members)
            self.shard.write({name: stack[stored] for name, stack in rows.items()}, ids[stored])
        else:
            self._check(rows, torch.arange(self.shard.clients))
            self.shard = Shard(rows, self.shard.members)

    def _check(self, rows: Tree, ids: Tensor) -> None:
        """Refuse rows of other clients, shapes or types than these clients keep, one row for each."""
        if len(ids.unique()) != len(ids) or not ((ids >= 0) & (ids < max(self.shard.clients, 1))).all():
            raise ValueError(f"{self.key}.ids are not those of {self.shard.clients} clients")
        stacks = self.shard.own or self.shard.start
        for name, stack in rows.items():
            dtype = stacks[name].dtype
            shape = (len(ids), *stacks[name].shape[1:])
            if stack.dtype != dtype or tuple(stack.shape) != shape:
                raise ValueError(f"{self.key}.{name} has {stack.dtype} {tuple(stack.shape)} instead of {dtype} {shape}")


def checked_rows(start: Mapping[str, Any], num_clients: int) -> Mapping[str, Tensor]:
    """The state that clients begin with, checked to have a row for each of them.

    Args:
        start: The ``initial_state`` of a method.
        num_clients: Number of clients.

    Raises:
        PflError: If an entry is no tensor, or has another number of rows.
    """
    for name, stack in start.items():
        if not (isinstance(stack, Tensor) and stack.shape[:1] == (num_clients,)):
            value = f"a tensor {[*stack.shape]}" if isinstance(stack, Tensor) else f"a {type(stack).__name__}"
            raise PflError(f"initial_state: {name} is {value}; allowed: a tensor [{num_clients}, ...], a row a client")
    return start


class ServerState(nn.Module):
    """The tensors that the server keeps beside the model, as buffers, whose names may have dots here.

    Args:
        start: What it begins with, ``[...]``; it is copied.
    """

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = list(start)
        for name, tensor in start.items():
            self.register_buffer(name.replace(".", "/"), tensor.clone())

    @property
    def tree(self) -> Tree:
        """The tensors by name; change them in place."""
        return {name: self.get_buffer(name.replace(".", "/")) for name in self.names}


class Shard:
    """The rows of this process: client ``i`` is stored in process ``i % processes``.

    Clients that begin alike share one row until the first change. Then all rows are allocated and filled; if they are
    many and on a CPU, they are allocated uninitialised, since the OS commits only pages that are written.

    Args:
        start: What clients begin with, ``[clients, ...]`` each. Where it is one row for all, that row is copied.
        members: The clients, rising, where they are not all: the rows of each are where they would be among all.

    Attributes:
        start: The same; empty once all rows are filled.
        clients: Number of clients, those of other processes included.
        own: The rows of this process, ``[own clients, ...]`` each; empty before the first change.
        changed: Which of these have changed, ``[own clients]``, on the CPU; None once all are filled.
    """

    def __init__(self, start: Mapping[str, Tensor], members: Tensor | None = None) -> None:
        self.start = {name: _along_clients(torch.clone, stack) for name, stack in start.items()}
        self.members = members
        self.clients = min(map(len, start.values()), default=0)
        self.own: Tree = {}
        self.changed: Tensor | None = None

    def ids(self) -> Tensor:
        """The clients whose rows this process has, ``[own clients]``, on the CPU."""
        return torch.arange(self.clients)[self._here()]

    def _here(self) -> slice | Tensor:
        """The rows of this process among those of all clients."""
        if self.members is None:
            return slice(processes.rank(), None, processes.count())
        return self.members % processes.count() == processes.rank()

    def owners(self, ids: Tensor) -> Tensor:
        """The processes that have the rows of some clients."""
        numbers = ids if self.members is None else self.members.to(ids.device)[ids]
        return numbers % processes.count()

    def places(self, ids: Tensor) -> Tensor:
        """Where this process has the rows of some of its clients."""
        return ids // processes.count() if self.members is None else torch.searchsorted(self.ids().to(ids.device), ids)

    def read(self, name: str, ids: Tensor) -> Tensor:
        """Copy rows of some clients of this process, ``[ids, ...]``; before the first change, of any clients."""
        if not self.own:
            return self.start[name].index_select(0, ids.to(self.start[name].device))
        places = self.places(ids)
        rows = self.own[name].index_select(0, places.to(self.own[name].device))
        if self.changed is not None:
            rows[~self.changed[places]] = self.start[name][0]
        return rows

    def write(self, rows: Mapping[str, Tensor], ids: Tensor) -> None:
        """Store rows of some clients of this process in place; the cost depends on their number only."""
        self.begin()
        places = self.places(ids)
        for name, stack in self.own.items():
            stack.index_copy_(0, places.to(stack.device), rows[name])
        if self.changed is not None:
            self.changed[places] = True

    def begin(self) -> None:
        """Allocate the rows; many rows are only reserved, and filled as they change."""
        if self.own or not self.start:
            return
        own = self._here()
        rows = {name: stack[own] for name, stack in self.start.items()}
        at_once = sum(stack.nbytes for stack in self.start.values()) // processes.count() <= LARGEST_AT_ONCE
        if at_once or not all(stack.is_cpu and _is_one_row(stack) for stack in self.start.values()):
            self.own = {name: stack.clone(memory_format=torch.contiguous_format) for name, stack in rows.items()}
            self.start = {}
        else:
            self.own = {name: stack.new_empty(stack.shape) for name, stack in rows.items()}
            self.changed = torch.zeros(len(self.ids()), dtype=torch.bool)

    def fill(self) -> Tree:
        """Allocate and fill all rows, and return them."""
        self.begin()
        if self.changed is not None:
            for name, stack in self.own.items():
                stack[~self.changed] = self.start[name][0]
            self.start = {}
            self.changed = None
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


class Exchange:
    """The clients whose rows a process needs to mix those of its own clients: in a graph, their neighbours alone.

    Args:
        matrix: Weights, ``[receivers, senders]``; both axes are the clients ``ids``.
        ids: The clients that mix, rising, on the CPU, ``[clients]``; None for all, of which the matrix says how many.

    Attributes:
        receivers: Where this process has the rows of those of its clients that mix.
        weights: Their weights, ``[receivers, senders]``.
    """

    def __init__(self, matrix: Tensor, ids: Tensor | None) -> None:
        count = processes.count()
        self.receivers: slice | Tensor = slice(None) if ids is None else ids
        self.weights = matrix
        if count == 1:
            return
        ids = torch.arange(len(matrix)) if ids is None else ids
        owners = ids % count
        stored = owners == processes.rank()
        linked = (matrix != 0).cpu()
        needed = [linked[owners == process].any(0) for process in range(count)]
        self._sent = [ids[columns & stored] // count for columns in needed]
        columns = [(needed[processes.rank()] & (owners == process)).nonzero()[:, 0] for process in range(count)]
        self._arriving: Sequence[int] = list(map(len, columns))
        self.receivers = ids[stored] // count
        self.weights = matrix[stored.to(matrix.device)][:, torch.cat(columns).to(matrix.device)]

    def rows(self, block: Tensor) -> Tensor:
        """The senders' rows, ``[senders, entries]``, of which each process has its clients' ``block``."""
        if processes.count() == 1:
            return block[self.receivers]
        return processes.all_to_all([block[places] for places in self._sent], self._arriving)


def all_rows(rows: Tensor, clients: int) -> Tensor:
    """The rows of all clients, ``[clients, ...]``, given those of this process, ``[own clients, ...]``."""
    count = processes.count()
    if count == 1:
        return rows
    arriving = [len(range(process, clients, count)) for process in range(count)]
    parts = processes.all_to_all([rows] * count, arriving).split(arriving)
    stack = rows.new_empty(clients, *rows.shape[1:])
    for process, part in enumerate(parts):
        stack[process::count] = part
    return stack
