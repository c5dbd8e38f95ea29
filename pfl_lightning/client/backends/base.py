from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from pfl_lightning.client.phase import Phase
from pfl_lightning.client.steps import AutogradSteps, Steps
from pfl_lightning.tree import Params, Tree

ClientFunction = Callable[..., Tree]


class Backend(ABC):
    """How one computation is carried out for many clients. All backends give the same numbers, but for rounding.

    Attributes:
        name: What users call it.
    """

    name: ClassVar[str]

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

    def steps(self, network: nn.Sequential, start: Params, rows: Tree, phase: Phase, samples: int) -> Steps:
        """The steps of a phase at some clients; see ``Steps``.

        Args:
            network: What moves, and all behind it.
            start: The tensors of this network before the phase, and those that lie beside it.
            rows: What moves, uninitialised, ``[clients, ...]``.
            phase: What to do.
            samples: How many inputs of the largest client are the same during the whole phase; 0 if they change.
        """
        return AutogradSteps(self.forward, network, start, rows, phase)
