"""Penalty terms on the clients' local losses, for ``Phase.penalty``. Each class computes the gradient of its term."""

from dataclasses import dataclass
from functools import reduce

import torch

from pfl_lightning.client.phase import Rule
from pfl_lightning.tree import Tree


@dataclass(frozen=True)
class Proximity:
    """Proximal term ``strength / 2 * |w - anchor|^2``, which pulls the parameters towards an anchor.

    The term of FedProx (Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127,
    eq. (2)); Ditto and pFedMe use it with other anchors.

    Attributes:
        strength: Weight of the term.
        anchor: Prefix of the anchor's tensors, such as ``anchor`` for ``anchor.fc1.weight``.
    """

    strength: float
    anchor: str = "anchor"

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """``strength * (w - anchor)``."""
        return {n: torch.sub(w, beside[f"{self.anchor}.{n}"]).mul_(self.strength) for n, w in tensors.items()}


@dataclass(frozen=True)
class Correlation:
    """Correlation term ``-strength * <w, anchor>``, which rewards agreement with an anchor.

    The term of FedMac (Liu et al., Sparse Personalized Federated Learning, arXiv:2107.05330).

    Attributes:
        strength: Weight of the term.
        anchor: Prefix of the anchor's tensors.
    """

    strength: float
    anchor: str = "anchor"

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """``-strength * anchor``."""
        return {name: -self.strength * beside[f"{self.anchor}.{name}"] for name in tensors}


@dataclass(frozen=True)
class SmoothL1:
    """Smoothed L1 term ``strength * sum smoothing * log cosh(w / smoothing)``, which favours small parameters.

    Per parameter, the smoothed value lies between ``|w| - smoothing * log 2`` and ``|w|``. Parameters become small, but
    not exactly zero.

    Attributes:
        strength: Weight of the term.
        smoothing: Width of the region around zero where ``|w|`` is rounded.
    """

    strength: float
    smoothing: float

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """``strength * tanh(w / smoothing)``."""
        return {name: torch.tanh(tensor / self.smoothing).mul_(self.strength) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Total:
    """Sum of several penalties.

    Attributes:
        penalties: The penalties to add up.
    """

    penalties: tuple[Rule, ...]

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """The sum of their gradients."""
        parts = [penalty(tensors, beside) for penalty in self.penalties]
        return {name: reduce(torch.add, (part[name] for part in parts)) for name in tensors}
