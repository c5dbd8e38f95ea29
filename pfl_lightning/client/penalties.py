"""What is added to the clients' local losses: penalties of a ``Phase``, which are the gradients of the added terms."""

from dataclasses import dataclass
from functools import reduce

import torch

from pfl_lightning.client.phase import Rule
from pfl_lightning.tree import Tree


@dataclass(frozen=True)
class Proximity:
    """Pulls towards an anchor: ``strength / 2 * |w - anchor|^2`` is added to the loss.

    The term of FedProx (Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127,
    eq. (2)), and of Ditto and pFedMe around other anchors.

    Attributes:
        strength: Weight of the term.
        anchor: Prefix of the anchor's tensors beside the network, such as ``anchor`` for ``anchor.fc1.weight``.
    """

    strength: float
    anchor: str = "anchor"

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """``strength * (w - anchor)``."""
        return {n: torch.sub(w, beside[f"{self.anchor}.{n}"]).mul_(self.strength) for n, w in tensors.items()}


@dataclass(frozen=True)
class Correlation:
    """Rewards agreement with an anchor: ``-strength * <w, anchor>`` is added to the loss, as in FedMac.

    The term of FedMac (Liu et al., Sparse Personalized Federated Learning, arXiv:2107.05330).

    Attributes:
        strength: Weight of the term.
        anchor: Prefix of the anchor's tensors beside the network.
    """

    strength: float
    anchor: str = "anchor"

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """``-strength * anchor``."""
        return {name: -self.strength * beside[f"{self.anchor}.{name}"] for name in tensors}


@dataclass(frozen=True)
class SmoothL1:
    """Favours small parameters: ``strength * sum smoothing * log cosh(w / smoothing)`` is added to the loss.

    It lies between ``|w| - smoothing * log 2`` and ``|w|``; never exactly zero parameters result, only small ones.

    Attributes:
        strength: Weight of the term.
        smoothing: Width of the rounded tip of ``|w|``.
    """

    strength: float
    smoothing: float

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """``strength * tanh(w / smoothing)``."""
        return {name: torch.tanh(tensor / self.smoothing).mul_(self.strength) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Total:
    """Several penalties at once.

    Attributes:
        penalties: Which.
    """

    penalties: tuple[Rule, ...]

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """The sum of their gradients."""
        parts = [penalty(tensors, beside) for penalty in self.penalties]
        return {name: reduce(torch.add, (part[name] for part in parts)) for name in tensors}
