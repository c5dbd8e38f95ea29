from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from pfl_lightning.tree import Params, Tree

ClientFunction = Callable[..., Tree]


class Backend(ABC):
    """How one computation is carried out for many clients. All backends give the same numbers."""

    @abstractmethod
    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """Map a pure function of one client's tensors over the clients; see ``Engine.each``."""

    @abstractmethod
    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """Outputs of a network at every client.

        Args:
            network: What to compute; its own tensors are not used.
            params: Exactly the tensors of this network.
            inputs: ``[clients, batch, ...]``.

        Returns:
            Outputs, ``[clients, batch, ...]``.
        """

    @abstractmethod
    def tile_size(self, moving: list[Tensor]) -> int:
        """How many clients train at once, given the stacks that move, ``[clients, ...]`` each."""
