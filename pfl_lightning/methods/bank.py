from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from pfl_lightning.tree import Tree

BLOCK_BYTES = 64 << 20  # size of the blocks in which a stack is mixed


class ClientBank(nn.Module):
    """The tensors that every client keeps: one stack ``[clients, ...]`` per tensor, under the network's own names.

    Args:
        start: Initial tensors of a client, without the client axis.
        num_clients: Number of clients.
    """

    def __init__(self, start: Mapping[str, Tensor], num_clients: int) -> None:
        super().__init__()
        self.names = list(start)
        for name, tensor in start.items():
            *path, leaf = name.split(".")
            module: nn.Module = self
            for step in path:
                if not hasattr(module, step):
                    module.add_module(step, nn.Module())
                module = module.get_submodule(step)
            module.register_buffer(leaf, tensor.detach().expand(num_clients, *tensor.shape).clone())

    def gather(self, ids: Tensor) -> Tree:
        """Copy the rows of the given clients, ``[cohort, ...]``."""
        return {name: self.get_buffer(name)[ids] for name in self.names}

    @torch.no_grad()
    def scatter(self, ids: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Store the rows of the given clients in place; the cost depends on the cohort size only."""
        for name in self.names:
            self.get_buffer(name).index_copy_(0, ids, rows[name])

    @torch.no_grad()
    def mix(self, matrix: Tensor, names: Iterable[str], into: str = "") -> None:
        """Replace every client's row by a weighted combination of all rows, as in gossip or attention.

        Call it between rounds, for example in ``server_step``. Within a round, clients that have not trained yet would
        start from mixed rows, and the result would depend on the chunk size.

        Args:
            matrix: Weights, ``[receivers, senders]``; both axes cover all clients.
            names: Tensors to mix; they must have a floating-point type.
            into: Prefix of the tensors that receive the result, such as ``cloud.``. By default the rows are
                overwritten, block by block, so that no second bank is needed.
        """
        for name in names:
            source, target = (self._rows(f"{prefix}{name}") for prefix in ("", into))
            columns = max(1, BLOCK_BYTES // (source.element_size() * len(source)))
            for sent, received in zip(source.split(columns, 1), target.split(columns, 1), strict=True):
                received.copy_(matrix.to(source) @ sent)

    @torch.no_grad()
    def mean(self, names: Iterable[str]) -> Tree:
        """Mean over all clients, in the dtype of the bank."""
        return {name: self.get_buffer(name).mean(0) for name in names}

    def _rows(self, name: str) -> Tensor:
        """A view of a stack as a matrix, ``[clients, entries]``."""
        stack = self.get_buffer(name)
        return stack.view(len(stack), -1)
