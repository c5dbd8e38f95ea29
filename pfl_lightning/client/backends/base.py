from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from pfl_lightning.client.losses import Loss
from pfl_lightning.client.phase import Phase
from pfl_lightning.client.steps import AutogradSteps, Steps
from pfl_lightning.tree import Params, Tree

ClientFunction = Callable[..., Tree]


class Backend(ABC):
    """Runs a computation for many clients. All backends give the same results up to rounding.

    Attributes:
        name: Name of the backend on the command line.
    """

    name: ClassVar[str]

    @abstractmethod
    def each(self, function: ClientFunction, params: Params, *arguments: Tensor) -> Tree:
        """Map a pure function of one client's tensors over the clients; see ``Engine.each``."""

    @abstractmethod
    def forward(self, network: nn.Module, params: Params, inputs: Tensor) -> Tensor:
        """Outputs of a network for every client.

        Args:
            network: The network; its own tensors are not used.
            params: Exactly the tensors of this network.
            inputs: ``[clients, batch, ...]``.

        Returns:
            Outputs, ``[clients, batch, ...]``.
        """

    @abstractmethod
    def tile_size(self, moving: list[Tensor]) -> int:
        """Number of clients to train at once, given the stacks that are trained, ``[clients, ...]`` each."""

    def steps(self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, loss: Loss, samples: int) -> Steps:
        """The SGD steps of a phase for some clients.

        Args:
            network: See ``Steps``.
            start: See ``Steps``.
            rows: See ``Steps``.
            phase: The phase to run.
            loss: The loss.
            samples: Number of the largest client's inputs if they stay the same during the whole phase; 0 if they
                change.
        """
        return AutogradSteps(self.forward, network, start, rows, phase, loss)
