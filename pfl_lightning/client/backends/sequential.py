"""The reference: one client at a time, without padding.

Works for every network. On a CPU, images have the channels-last layout, which is faster for convolutions.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pfl_lightning.client.backends.base import Backend, ClientFunction
from pfl_lightning.client.layers import layout
from pfl_lightning.tree import Params, Tree


class Sequential(Backend):
    """One client at a time."""

    name = "sequential"

    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """Call the function once per client."""
        clients = len(next(iter([*params.own.values(), *arguments])))
        results = [function(params.client(row), *(argument[row] for argument in arguments)) for row in range(clients)]
        return {name: torch.stack([result[name] for result in results]) for name in results[0]}

    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """One call per client."""
        outputs = [functional_call(network, params.client(row), layout(batch)) for row, batch in enumerate(inputs)]
        return torch.stack(outputs)

    def tile_size(self, moving: list[Tensor]) -> int:
        """One client."""
        return 1
