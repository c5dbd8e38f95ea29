from collections.abc import Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor, nn

from pfl_lightning.tree import Tree

# size of the blocks in which a stack is mixed or measured: on a CPU they stay in its cache
CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES = 1 << 20, 64 << 20


class ClientBank(nn.Module):
    """The tensors that every client keeps: one stack ``[clients, ...]`` per tensor, under the network's own names.

    Args:
        start: Initial stacks, ``[clients, ...]``; they are copied.
    """

    def __init__(self, start: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = list(start)
        for name, stack in start.items():
            *path, leaf = name.split(".")
            module: nn.Module = self
            for step in path:
                if not hasattr(module, step):
                    module.add_module(step, nn.Module())
                module = module.get_submodule(step)
            module.register_buffer(leaf, stack.detach().clone(memory_format=torch.contiguous_format))

    def stacks(self, names: Iterable[str]) -> Tree:
        """The stacks with these names, ``[clients, ...]``; not copies."""
        return {name: self.get_buffer(name) for name in names}

    def gather(self, ids: Tensor) -> Tree:
        """Copy the rows of the given clients, ``[cohort, ...]``."""
        return {name: self.get_buffer(name).index_select(0, ids) for name in self.names}

    @torch.no_grad()
    def scatter(self, ids: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Store the rows of the given clients in place; the cost depends on the cohort size only."""
        for name in self.names:
            self.get_buffer(name).index_copy_(0, ids, rows[name])

    @torch.no_grad()
    def mix(self, matrix: Tensor, names: Iterable[str], into: str | None = None, ids: Tensor | None = None) -> None:
        """Replace clients' rows by weighted combinations of their rows, as in gossip or attention.

        Call it between rounds, for example in ``server_step``. Within a round, clients that have not trained yet would
        start from mixed rows, and the result would depend on the chunk size. Integers, such as BatchNorm's counters,
        stay as they are.

        Args:
            matrix: Weights, ``[receivers, senders]``; both axes are the clients ``ids``.
            names: Tensors to mix.
            into: Prefix of the tensors that receive the result, such as ``cloud``. By default the rows are
                overwritten, block by block, so that no second bank is needed.
            ids: The clients that mix, ``[clients]``; by default all of them.
        """
        rows = slice(None) if ids is None else ids
        for name in names:
            source, target = self._matrix(name), self._matrix(name if into is None else f"{into}.{name}")
            weights, width = matrix.to(source), block_width(source)
            for start in range(0, source.shape[1] if source.is_floating_point() else 0, width):
                block = slice(start, start + width)
                with torch.autocast(source.device.type, enabled=False):  # mixed precision must not apply to mixes
                    target[rows, block] = weights @ source[rows, block]

    @torch.no_grad()
    def mix_held(self, matrix: Tensor, names: Iterable[str], masks: str, ids: Tensor | None = None) -> None:
        """Mix as in ``mix``, but each entry among those clients only that hold it; others keep a zero.

        Block by block a row becomes ``mask_i * (sum_j matrix_ij row_j) / (sum_j matrix_ij mask_j)``.

        Args:
            matrix: Weights, ``[receivers, senders]``; both axes are the clients ``ids``.
            names: Tensors of real numbers, with zeros outside of their masks.
            masks: Prefix of the masks, booleans, such as ``mask``.
            ids: The clients that mix, ``[clients]``; by default all of them.
        """
        rows = slice(None) if ids is None else ids
        for name in names:
            stack, mask = self._matrix(name), self._matrix(f"{masks}.{name}")
            weights, width = matrix.to(stack), block_width(stack)
            for start in range(0, stack.shape[1], width):
                block = slice(start, start + width)
                held = mask[rows, block]
                with torch.autocast(stack.device.type, enabled=False):
                    share = weights @ held.to(stack)
                    mixed = weights @ stack[rows, block] / share.where(share != 0, 1)
                stack[rows, block] = mixed.where(held, 0)

    @torch.no_grad()
    def inner_products(self, names: Iterable[str]) -> Tensor:
        """Inner products between all clients' rows, summed over some tensors block by block.

        Args:
            names: Tensors of real numbers; their order decides about the last digits.

        Returns:
            Float64, ``[clients, clients]``.
        """
        matrices = map(self._matrix, names)
        blocks = (block.double() for matrix in matrices for block in matrix.split(block_width(matrix), dim=1))
        total: Tensor = reduce(Tensor.add_, (block @ block.T for block in blocks))
        return total

    @torch.no_grad()
    def spread(self, names: Iterable[str], ids: Tensor | None = None) -> Tensor:
        """Mean over the clients of the squared distance to their mean; 0 if all are equal.

        Args:
            names: Tensors of real numbers, seen as one vector.
            ids: The clients, ``[clients]``; by default all of them.

        Returns:
            Float64 scalar.
        """
        rows = slice(None) if ids is None else ids
        matrices = map(self._matrix, names)
        blocks = (block[rows] for matrix in matrices for block in matrix.split(block_width(matrix), dim=1))
        distances = [torch.linalg.vector_norm(block - block.mean(0)) / len(block) ** 0.5 for block in blocks]
        return torch.stack(distances).double().square().sum()

    @torch.no_grad()
    def mean(self, names: Iterable[str], ids: Tensor | None = None) -> Tree:
        """Mean over some clients, ``[clients]``, or over all; integers come back as floats."""
        rows = slice(None) if ids is None else ids
        means = {}
        for name, stack in self.stacks(names).items():
            dtype = stack.dtype if stack.is_floating_point() else torch.get_default_dtype()
            blocks = self._matrix(name).split(block_width(stack), dim=1)
            means[name] = torch.cat([block[rows].mean(0, dtype=dtype) for block in blocks]).view(stack.shape[1:])
        return means

    @torch.no_grad()
    def mean_held(self, names: Iterable[str], masks: str, ids: Tensor | None = None) -> Tree:
        """Mean of each entry over those of the clients that hold it, 0 if none does; arguments as for ``mix_held``."""
        means = self.mean(names, ids)
        for name, mean in means.items():
            (share,) = self.mean([f"{masks}.{name}"], ids).values()
            mean /= share.where(share > 0, 1)
        return means

    def _matrix(self, name: str) -> Tensor:
        """A view of a stack as a matrix, ``[clients, entries]``."""
        stack = self.get_buffer(name)
        return stack.view(len(stack), -1)


def block_width(stack: Tensor) -> int:
    """Entries of each client in a block of a stack, ``[clients, ...]``."""
    size = CPU_BLOCK_BYTES if stack.device.type == "cpu" else DEVICE_BLOCK_BYTES
    return max(1, size // (stack.element_size() * len(stack)))
