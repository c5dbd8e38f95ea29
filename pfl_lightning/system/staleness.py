"""How much an upload counts whose client began with an older model: the functions of FedAsync.

Paper: Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019, arXiv:1903.03934.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, NonNegativeInt


class Staleness(ABC):
    """The share of an upload that counts; 1 where the client began with the newest model."""

    @abstractmethod
    def __call__(self, updates: Tensor) -> Tensor:
        """Shares in [0, 1], ``[uploads]``, given the updates since each client began, float64 ``[uploads]``."""


class Constant(Staleness):
    """Every upload counts in full."""

    def __call__(self, updates: Tensor) -> Tensor:
        """1 for all."""
        return updates.new_ones(len(updates))


class Polynomial(Staleness):
    """(1 + updates)^-exponent.

    Args:
        exponent: FedAsync's a; FedBuff has 0.5.
    """

    def __init__(self, exponent: NonNegativeFloat = 0.5) -> None:
        self.exponent = exponent

    def __call__(self, updates: Tensor) -> Tensor:
        """The powers."""
        shares: Tensor = (1 + updates) ** -self.exponent
        return shares


class Hinge(Staleness):
    """1 for a few updates, then 1 / (1 + slope * (updates - free)).

    Args:
        slope: How fast it falls, FedAsync's a.
        free: Updates that cost nothing, FedAsync's b.
    """

    def __init__(self, slope: NonNegativeFloat = 10.0, free: NonNegativeInt = 4) -> None:
        self.slope, self.free = slope, free

    def __call__(self, updates: Tensor) -> Tensor:
        """1, or the fractions."""
        shares: Tensor = 1 / (1 + self.slope * (updates - self.free).clamp(min=0))
        return shares
