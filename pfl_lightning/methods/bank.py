from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pfl_lightning.tree import Tree


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
