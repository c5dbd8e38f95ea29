"""Many clients at once with ``vmap``; on a CPU in tiles that fit in the cache.

Works for every network without BatchNorm, whose statistics would include the padding of clients with fewer samples.
Dropout masks depend on which clients share a tile, and so on the chunk size, because a tile uses one random stream.
"""

from torch import Tensor, nn
from torch.func import functional_call, vmap

from pfl_lightning.client.backends.base import Backend, ClientFunction
from pfl_lightning.tree import Params, Tree

TILE_BYTES = 24 << 20  # trained parameters of a tile on a CPU: more do not stay in its cache between steps


class Batched(Backend):
    """Many clients at once.

    Args:
        chunk_size: Clients that train at once; None for a fixed rule.
    """

    name = "batched"

    def __init__(self, chunk_size: int | None = None) -> None:
        self.chunk_size = chunk_size

    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """One vectorised call for all clients."""

        def client(own: Tree, *rows: Tensor) -> Tree:
            return function({**params.shared, **own}, *rows)

        return vmap(client, in_dims=(0,) * (1 + len(arguments)), randomness="different")(params.own, *arguments)

    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """One vectorised call for all clients."""

        def client(own: Tree, batch: Tensor) -> Tensor:
            outputs: Tensor = functional_call(network, {**params.shared, **own}, batch)
            return outputs

        return vmap(client, randomness="different")(params.own, inputs)

    def tile_size(self, moving: list[Tensor]) -> int:
        """On a CPU as many clients as fit in its cache; on an accelerator all of them."""
        clients = len(moving[0])
        if self.chunk_size:
            return self.chunk_size
        if moving[0].device.type != "cpu":
            return clients
        return max(1, TILE_BYTES // max(1, sum(stack.nbytes for stack in moving) // clients))
