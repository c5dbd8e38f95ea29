from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from pfl_lightning.tree import Tree

BLOCK_BYTES = 64 << 20  # of a stack that is mixed at once


class ClientBank(nn.Module):
    """What every client keeps, as one stack per tensor under the network's own names, ``[clients, ...]``.

    Args:
        start: What each client starts with, without the client axis.
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
        """Copies of some clients' rows, ``[cohort, ...]``."""
        return {name: self.get_buffer(name)[ids] for name in self.names}

    @torch.no_grad()
    def scatter(self, ids: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Store some clients' rows, in place; the cost depends on the cohort alone."""
        for name in self.names:
            self.get_buffer(name).index_copy_(0, ids, rows[name])

    @torch.no_grad()
    def mix(self, matrix: Tensor, names: Iterable[str], into: str = "") -> None:
        """Give every client a combination of all clients' rows: gossip, attention.

        Call it between rounds, such as in ``server_step``: rows of clients that still have to train would differ with
        the size of the chunks otherwise.

        Args:
            matrix: Weights, ``[receivers, senders]``, both of them all clients.
            names: Which tensors, of a floating type.
            into: Prefix of the tensors that receive the result, such as ``cloud.``; by default it takes the place of
                what was mixed, block by block, so that no second bank is needed.
        """
        for name in names:
            source, target = (self._rows(f"{prefix}{name}") for prefix in ("", into))
            columns = max(1, BLOCK_BYTES // (source.element_size() * len(source)))
            for sent, received in zip(source.split(columns, 1), target.split(columns, 1), strict=True):
                received.copy_(matrix.to(source) @ sent)

    @torch.no_grad()
    def mean(self, names: Iterable[str]) -> Tree:
        """The mean of all clients' rows; the type of the result is that of the bank."""
        return {name: self.get_buffer(name).mean(0) for name in names}

    def _rows(self, name: str) -> Tensor:
        """A view of a stack as a matrix, ``[clients, numbers]``."""
        stack = self.get_buffer(name)
        return stack.view(len(stack), -1)
