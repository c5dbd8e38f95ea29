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
CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES = 1 << 20, 64 << 20


class ClientStates(nn.Module):
    """The tensors that every client keeps: one row for each client, under the network's own names.

    With several processes, each stores the rows of some clients (``Shard``); during a round, rows are ``placed`` in the
    process that trains their clients. All processes call every method together, but for ``gather`` and ``scatter``.

    Args:
        start: What clients begin with, ``[clients, ...]``; it is copied.
    """

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.shard = Shard(start)
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
        known = self.shard.own or self.shard.start
        return len(self.shard.ids()) * sum(stack.shape[1:].numel() * stack.element_size() for stack in known.values())

    def gather(self, ids: Tensor) -> Tree:
        """Copy the rows of some clients: of any that are placed here, or else of those that this process stores."""
        self._check_readable()
        if self._placed is None:
            return {name: self.shard.read(name, ids) for name in self.names}
        known, rows = self._placed
        places = torch.searchsorted(known, ids)
        return {name: rows[name].index_select(0, places) for name in self.names}

    @torch.no_grad()
    def scatter(self, ids: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Store rows of clients that ``gather`` can copy, in place; the cost depends on their number only."""
        if self._placed is None:
            self.shard.write(rows, ids)
            return
        known, placed = self._placed
        for name in self.names:
            placed[name].index_copy_(0, torch.searchsorted(known, ids), rows[name])

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
        here = [ids[ids % processes.count() == processes.rank()] for ids in clients]  # stored here, for each process
        owners = clients[processes.rank()] % processes.count()
        arriving = owners.bincount(minlength=processes.count()).tolist()
        known, order = clients[processes.rank()][owners.argsort(stable=True)].sort()
        rows = {}
        for name in self.names:
            arrived = processes.exchanged([self.shard.read(name, ids) for ids in here], arriving)
            rows[name] = arrived[order.to(arrived.device)]
            known = known.to(arrived.device)
        self._placed = known, rows
        try:
            yield
        finally:
            self._placed = None
        if changes:
            back, lengths = order.argsort().split(arriving), list(map(len, here))
            changed = {
                name: processes.exchanged([stack[places.to(stack.device)] for places in back], lengths)
                for name, stack in rows.items()
            }
            self.shard.write(changed, torch.cat(here))

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
            source, target = self._matrix(name), self._matrix(f"{into}.{name}" if into else name)
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
        count, rank, clients = processes.count(), processes.rank(), self.shard.clients if ids is None else len(ids)
        chosen, own = (slice(None), slice(rank, None, count)) if ids is None else (ids, ids % count == rank)
        products = torch.zeros(clients, clients, dtype=torch.float64)
        for matrix in map(self._matrix, names):
            products = products.to(matrix.device)
            for block in self._blocks(matrix):
                rows = everyone(matrix[:, block], self.shard.clients)[chosen].double()
                products[own] += rows[own] @ rows.T
        return processes.total({"": products})[""]

    @torch.no_grad()
    def spread(self, names: Iterable[str], ids: Tensor | None = None) -> Tensor:
        """Mean over the clients of the squared distance to their mean; 0 if all are equal.

        Args:
            names: Tensors of real numbers, seen as one vector.
            ids: The clients, on the CPU, ``[clients]``; by default all of them.

        Returns:
            Float64 scalar.
        """
        places, clients = self._places(ids), self.shard.clients if ids is None else len(ids)
        distances = []
        for name, mean in self.mean(names, ids).items():
            matrix, center = self._matrix(name), mean.flatten()
            parts = (matrix[:, block][places] - center[block] for block in self._blocks(matrix))
            distances += [torch.linalg.vector_norm(part) / clients**0.5 for part in parts]
        return processes.total({"": torch.stack(distances).double().square().sum()})[""]

    @torch.no_grad()
    def mean(self, names: Iterable[str], ids: Tensor | None = None) -> Tree:
        """Mean over some clients, on the CPU, ``[clients]``, or over all; integers come back as floats."""
        places, clients = self._places(ids), self.shard.clients if ids is None else len(ids)
        sums = {}
        for name in sorted(names):
            stack, matrix = self.stack(name), self._matrix(name)
            dtype = stack.dtype if stack.is_floating_point() else torch.get_default_dtype()
            parts = [matrix[:, block][places].sum(0, dtype=dtype) for block in self._blocks(matrix)]
            sums[name] = torch.cat(parts).view(stack.shape[1:])
        return {name: total / clients for name, total in processes.total(sums).items()}

    def _matrix(self, name: str) -> Tensor:
        """A view of the rows of this process as a matrix, ``[own clients, entries]``."""
        stack = self.stack(name)
        return stack.view(len(stack), prod(stack.shape[1:]))

    def _blocks(self, matrix: Tensor) -> Iterator[slice]:
        """Parts of the columns of a matrix that are worked on at once, the same in all processes."""
        few = matrix.is_cpu and processes.count() == 1  # larger ones take fewer messages
        size, rows = CPU_BLOCK_BYTES if few else DEVICE_BLOCK_BYTES, -(-self.shard.clients // processes.count())
        width = max(1, size // (matrix.element_size() * rows))
        return (slice(start, start + width) for start in range(0, matrix.shape[1], width))

    def _places(self, ids: Tensor | None) -> slice | Tensor:
        """Where those of some clients, or of all, that this process has are among its rows."""
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
        ids, own = self.shard.changed_rows()
        none, arriving = [ids[:0]] * (processes.count() - 1), processes.gathered(len(ids))
        if processes.rank() > 0:
            arriving = [0] * len(arriving)
        ids = processes.exchanged([ids, *none], arriving)
        order = ids.argsort()
        for name, rows in own.items():
            arrived = processes.exchanged([rows, *(rows[:0] for _ in none)], arriving)
            checkpoint["state_dict"][f"{CLIENTS}.{name}"] = arrived[order.to(arrived.device)] if none else arrived
        if self.shard.changed is not None:
            start = {name: stack[0].clone() for name, stack in self.shard.start.items()}
            checkpoint[CLIENTS] = {"ids": ids[order], "start": start}

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Take from a checkpoint the rows that ``save`` put there; each process those of its clients.

        Raises:
            KeyError: If the checkpoint lacks something.
            ValueError: If it has rows of other shapes or types, or of other clients.
        """
        rows = {name: checkpoint["state_dict"].pop(f"{CLIENTS}.{name}") for name in self.names}
        if CLIENTS in checkpoint:
            ids, start = checkpoint[CLIENTS]["ids"], checkpoint[CLIENTS]["start"]
            self._check({name: start[name][None] for name in self.names}, torch.zeros(1))
            self._check(rows, ids)
            mine = ids % processes.count() == processes.rank()
            self.shard = Shard(repeated(select(start, rows), self.shard.clients))
            self.shard.write({name: stack[mine] for name, stack in rows.items()}, ids[mine])
        else:
            self._check(rows, torch.arange(self.shard.clients))
            self.shard = Shard(rows)

    def _check(self, rows: Tree, ids: Tensor) -> None:
        """Refuse rows that are not those of these clients, one row for each."""
        if len(ids.unique()) != len(ids) or not ((ids >= 0) & (ids < max(self.shard.clients, 1))).all():
            raise ValueError(f"{CLIENTS}.ids are not those of {self.shard.clients} clients")
        known = self.shard.own or self.shard.start
        for name, stack in rows.items():
            was, now = ((f"{each.dtype}", (len(ids), *each.shape[1:])) for each in (stack, known[name]))
            if was != now or len(stack) != len(ids):
                found = f"{stack.dtype} {tuple(stack.shape)}"
                raise ValueError(f"{CLIENTS}.{name} has {found} instead of {now[0]} {now[1]}")


def rows_of_all(start: Mapping[str, Any], num_clients: int) -> Mapping[str, Tensor]:
    """What clients begin with, if there is a row for each of them.

    Args:
        start: What a method says.
        num_clients: Number of clients.

    Raises:
        PflError: If something else is there.
    """
    for name, stack in start.items():
        if not (isinstance(stack, Tensor) and stack.shape[:1] == (num_clients,)):
            found = f"a tensor {[*stack.shape]}" if isinstance(stack, Tensor) else f"a {type(stack).__name__}"
            raise PflError(f"initial_state: {name} is {found}; allowed: a tensor [{num_clients}, ...], a row a client")
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

    Attributes:
        start: The same; empty once all rows are filled.
        clients: Number of clients, those of other processes included.
        own: The rows of this process, ``[own clients, ...]`` each; empty before the first change.
        changed: Which of these have changed, ``[own clients]``, on the CPU; None once all are filled.
    """

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        self.start = {name: _along_clients(torch.clone, stack) for name, stack in start.items()}
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
        for name, stack in self.own.items():
            stack.index_copy_(0, places.to(stack.device), rows[name])
        if self.changed is not None:
            self.changed[places] = True

    def begin(self) -> None:
        """Allocate the rows; many rows are only reserved, and filled as they change."""
        if self.own or not self.start:
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
        """Allocate and fill all rows, and return them."""
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
        count, rank = processes.count(), processes.rank()
        self.receivers: slice | Tensor = slice(None) if ids is None else ids
        self.weights = matrix
        if count == 1:
            return
        ids = torch.arange(len(matrix)) if ids is None else ids
        owners = ids % count
        linked = (matrix != 0).cpu()
        needed = [linked[owners == process].any(0) for process in range(count)]
        self._here = [ids[columns & (owners == rank)] // count for columns in needed]
        columns = [(needed[rank] & (owners == process)).nonzero()[:, 0] for process in range(count)]
        self._arriving: Sequence[int] = list(map(len, columns))
        self.receivers = ids[owners == rank] // count
        self.weights = matrix[(owners == rank).to(matrix.device)][:, torch.cat(columns).to(matrix.device)]

    def rows(self, block: Tensor) -> Tensor:
        """The senders' rows, ``[senders, entries]``, of which each process has its clients' ``block``."""
        if processes.count() == 1:
            return block[self.receivers]
        return processes.exchanged([block[places] for places in self._here], self._arriving)


def everyone(rows: Tensor, clients: int) -> Tensor:
    """The rows of all clients, ``[clients, ...]``, given those of this process, ``[own clients, ...]``."""
    count = processes.count()
    if count == 1:
        return rows
    arriving = [len(range(process, clients, count)) for process in range(count)]
    parts = processes.exchanged([rows] * count, arriving).split(arriving)
    found = rows.new_empty(clients, *rows.shape[1:])
    for process, part in enumerate(parts):
        found[process::count] = part
    return found
