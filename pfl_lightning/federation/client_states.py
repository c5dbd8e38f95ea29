from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pfl_lightning import processes
from pfl_lightning.federation.checkpoints import CLIENTS, check_ids, check_tensors
from pfl_lightning.federation.rows import Rows
from pfl_lightning.federation.senders import Senders, everyone
from pfl_lightning.tree import Tree

# size of the blocks in which a stack is mixed or measured: on a CPU they stay in its cache
CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES = 1 << 20, 64 << 20


class ClientStates(nn.Module):
    """The tensors that every client keeps: one row for each client, under the network's own names.

    Among several processes, each has the rows of some clients, see ``Rows``; in a round, rows are ``lent`` to the
    process that trains their clients. All methods but ``gather`` and ``scatter`` are called by all processes together.

    Args:
        start: What clients begin with, ``[clients, ...]``; it is copied.
    """

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.rows, self.names = Rows(start), list(start)
        self._guests: tuple[Tensor, Tree] | None = None  # ids, rising, and rows of the clients that train here

    def stack(self, name: str) -> Tensor:
        """The rows of all clients of this process, ``[own clients, ...]``; not a copy."""
        return self.rows.fill()[name]

    def stacks(self, names: Iterable[str]) -> Tree:
        """Several of these, in the order of their names."""
        return {name: self.stack(name) for name in sorted(names)}

    def example_row(self) -> Tree:
        """The rows of some client, ``[1, ...]``; zeros if this process has none."""
        ids, known = self.rows.ids()[:1], self.rows.own or self.rows.start
        if len(ids):
            return {name: self.rows.read(name, ids) for name in self.names}
        return {name: stack.new_zeros(1, *stack.shape[1:]) for name, stack in known.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the rows of this process."""
        known = self.rows.own or self.rows.start
        return len(self.rows.ids()) * sum(stack.shape[1:].numel() * stack.element_size() for stack in known.values())

    def gather(self, ids: Tensor) -> Tree:
        """Copy the rows of some clients: of any that train here while rows are lent, else of this process."""
        if self._guests is None:
            return {name: self.rows.read(name, ids) for name in self.names}
        known, rows = self._guests
        places = torch.searchsorted(known, ids)
        return {name: rows[name].index_select(0, places) for name in self.names}

    @torch.no_grad()
    def scatter(self, ids: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Store rows of clients that ``gather`` can copy, in place; the cost depends on their number only."""
        if self._guests is None:
            self.rows.write(rows, ids)
            return
        known, guests = self._guests
        for name in self.names:
            guests[name].index_copy_(0, torch.searchsorted(known, ids), rows[name])

    @contextmanager
    def lent(self, clients: Sequence[Tensor], changes: bool) -> Iterator[None]:
        """Have the rows of clients in the processes that train them.

        Args:
            clients: For each process the clients that it trains, ``[ids]`` each, on the CPU; each client once.
            changes: Whether their rows may change; these are stored when the block ends.
        """
        if processes.count() == 1 or not self.names:
            yield
            return
        here = [ids[ids % processes.count() == processes.rank()] for ids in clients]  # of this process, for each one
        owners = clients[processes.rank()] % processes.count()
        arriving = owners.bincount(minlength=processes.count()).tolist()
        known, order = clients[processes.rank()][owners.argsort(stable=True)].sort()
        rows = {}
        for name in self.names:
            arrived = processes.exchanged([self.rows.read(name, ids) for ids in here], arriving)
            rows[name] = arrived[order.to(arrived.device)]
            known = known.to(arrived.device)
        self._guests = known, rows
        yield
        self._guests = None
        if changes:
            back, lengths = order.argsort().split(arriving), list(map(len, here))
            changed = {
                name: processes.exchanged([stack[places.to(stack.device)] for places in back], lengths)
                for name, stack in rows.items()
            }
            self.rows.write(changed, torch.cat(here))

    @torch.no_grad()
    def mix(self, matrix: Tensor, names: Iterable[str], into: str | None = None, ids: Tensor | None = None) -> None:
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
        """
        senders = Senders(matrix, ids)
        for name in sorted(names):
            source, target = self._matrix(name), self._matrix(name if into is None else f"{into}.{name}")
            for block in self._blocks(source) if source.is_floating_point() else ():
                with torch.autocast(source.device.type, enabled=False):  # mixed precision must not apply to mixes
                    target[senders.receivers, block] = senders.weights.to(source, non_blocking=True) @ senders.rows(
                        source[:, block]
                    )

    @torch.no_grad()
    def mix_held(self, matrix: Tensor, names: Iterable[str], masks: str, ids: Tensor | None = None) -> None:
        """Mix as in ``mix``, but each entry among those clients only that hold it; others keep a zero.

        Block by block a row becomes ``mask_i * (sum_j matrix_ij row_j) / (sum_j matrix_ij mask_j)``.

        Args:
            matrix: Weights, ``[receivers, senders]``; both axes are the clients ``ids``.
            names: Tensors of real numbers, with zeros outside of their masks.
            masks: Prefix of the masks, booleans, such as ``mask``.
            ids: The clients that mix, rising, on the CPU, ``[clients]``; by default all of them.
        """
        senders = Senders(matrix, ids)
        for name in sorted(names):
            stack, mask = self._matrix(name), self._matrix(f"{masks}.{name}")
            weights = senders.weights.to(stack, non_blocking=True)
            for block in self._blocks(stack):
                rows, held = senders.rows(stack[:, block]), senders.rows(mask[:, block])
                with torch.autocast(stack.device.type, enabled=False):
                    share = weights @ held.to(stack)
                    mixed = weights @ rows / share.where(share != 0, 1)
                stack[senders.receivers, block] = mixed.where(mask[senders.receivers, block], 0)

    @torch.no_grad()
    def inner_products(self, names: Iterable[str]) -> Tensor:
        """Inner products between all clients' rows, summed over some tensors block by block.

        Args:
            names: Tensors of real numbers; their order decides about the last digits.

        Returns:
            Float64, ``[clients, clients]``.
        """
        clients, own = self.rows.clients, slice(processes.rank(), None, processes.count())
        products = torch.zeros(clients, clients, dtype=torch.float64)
        for matrix in map(self._matrix, names):
            products = products.to(matrix.device)
            for block in self._blocks(matrix):
                rows = matrix[:, block].double()
                products[own] += rows @ everyone(rows, clients).T
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
        places, clients = self._places(ids), self.rows.clients if ids is None else len(ids)
        distances = []
        for name, mean in self.mean(names, ids).items():
            matrix, center = self._matrix(name), mean.flatten()
            parts = (matrix[:, block][places] - center[block] for block in self._blocks(matrix))
            distances += [torch.linalg.vector_norm(part) / clients**0.5 for part in parts]
        return processes.total({"": torch.stack(distances).double().square().sum()})[""]

    @torch.no_grad()
    def mean(self, names: Iterable[str], ids: Tensor | None = None) -> Tree:
        """Mean over some clients, on the CPU, ``[clients]``, or over all; integers come back as floats."""
        places, clients = self._places(ids), self.rows.clients if ids is None else len(ids)
        sums = {}
        for name in sorted(names):
            stack, matrix = self.stack(name), self._matrix(name)
            dtype = stack.dtype if stack.is_floating_point() else torch.get_default_dtype()
            parts = [matrix[:, block][places].sum(0, dtype=dtype) for block in self._blocks(matrix)]
            sums[name] = torch.cat(parts).view(stack.shape[1:])
        return {name: total / clients for name, total in processes.total(sums).items()}

    @torch.no_grad()
    def mean_held(self, names: Iterable[str], masks: str, ids: Tensor | None = None) -> Tree:
        """Mean of each entry over those of the clients that hold it, 0 if none does; arguments as for ``mix_held``."""
        means = self.mean(names, ids)
        for name, mean in means.items():
            (share,) = self.mean([f"{masks}.{name}"], ids).values()
            mean /= share.where(share > 0, 1)
        return means

    def _matrix(self, name: str) -> Tensor:
        """A view of the rows of this process as a matrix, ``[own clients, entries]``."""
        stack = self.stack(name)
        return stack.view(len(stack), prod(stack.shape[1:]))

    def _blocks(self, matrix: Tensor) -> Iterator[slice]:
        """Parts of the columns of a matrix that are worked on at once, the same in all processes."""
        few = matrix.is_cpu and processes.count() == 1  # larger ones take fewer messages
        size, rows = CPU_BLOCK_BYTES if few else DEVICE_BLOCK_BYTES, -(-self.rows.clients // processes.count())
        width = max(1, size // (matrix.element_size() * rows))
        return (slice(start, start + width) for start in range(0, matrix.shape[1], width))

    def _places(self, ids: Tensor | None) -> slice | Tensor:
        """Where those of some clients, or of all, that this process has are among its rows."""
        return slice(None) if ids is None else ids[ids % processes.count() == processes.rank()] // processes.count()

    # Lightning's side: moving, saving, loading

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ClientStates":
        self.rows.apply(fn)
        return self

    def _save_to_state_dict(self, destination: Tree, prefix: str, keep_vars: bool) -> None:
        self.rows.begin()
        if self.rows.changed is None:
            destination.update({prefix + name: stack for name, stack in self.rows.own.items()})

    def _load_from_state_dict(self, state_dict: Tree, prefix: str, *_: object) -> None:
        for name in self.names:
            if prefix + name in state_dict:
                self.stack(name).copy_(state_dict[prefix + name])

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Put the rows of all clients into a checkpoint, as if there were one process; only the first one has them.

        Where rows take their memory one by one, the checkpoint has those that have changed, ``[changed, ...]``; its
        entry ``clients`` has the ``ids`` of their clients, and the row that all others ``start`` with.
        """
        if not self.names:
            return
        self.rows.begin()
        ids, own = self.rows.changed_rows()
        none, arriving = [ids[:0]] * (processes.count() - 1), processes.gathered(len(ids))
        if processes.rank() > 0:
            arriving = [0] * len(arriving)
        ids = processes.exchanged([ids, *none], arriving)
        order = ids.argsort()
        for name, rows in own.items():
            arrived = processes.exchanged([rows, *(rows[:0] for _ in none)], arriving)
            checkpoint["state_dict"][f"{CLIENTS}.{name}"] = arrived[order.to(arrived.device)] if none else arrived
        if self.rows.changed is not None:
            start = {name: stack[0].clone() for name, stack in self.rows.start.items()}
            checkpoint[CLIENTS] = {"ids": ids[order], "start": start}

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Take from a checkpoint the rows that ``save`` put there; each process those of its clients."""
        state, rows = checkpoint["state_dict"], {}
        for name in self.names:
            rows[name] = state.pop(f"{CLIENTS}.{name}")
        if CLIENTS not in checkpoint:
            self.rows = Rows(rows)
            return
        ids, start = checkpoint[CLIENTS]["ids"], checkpoint[CLIENTS]["start"]
        self.rows = Rows({name: start[name].expand(self.rows.clients, *start[name].shape) for name in self.names})
        mine = ids % processes.count() == processes.rank()
        self.rows.write({name: stack[mine] for name, stack in rows.items()}, ids[mine])

    def forms(self, checkpoint: dict[str, Any]) -> Tree:
        """Tensors without content, of the names, shapes and types that the rows in a checkpoint have.

        Raises:
            PflError: If the checkpoint says wrongly whose rows it has, or what the others start with.
        """
        known, number = self.rows.own or self.rows.start, check_ids(checkpoint)
        row = {name: torch.empty(stack.shape[1:], dtype=stack.dtype, device="meta") for name, stack in known.items()}
        if CLIENTS in checkpoint:
            check_tensors(checkpoint, row, (CLIENTS, "start"))
        return {f"{CLIENTS}.{name}": tensor.expand(number, *tensor.shape) for name, tensor in row.items()}
