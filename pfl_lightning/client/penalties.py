"""Penalty terms on the clients' local losses, for ``Phase.penalty``. Each class computes the gradient of its term."""

from dataclasses import dataclass

import torch

from pfl_lightning.client.phase import Rule
from pfl_lightning.errors import PflError
from pfl_lightning.tree import Tree, add_to


@dataclass(frozen=True)
class Proximity:
    """Proximal term ``strength / 2 * |w - anchor|^2``, which pulls the parameters towards an anchor.

    The term of FedProx (Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127,
    eq. (2)); Ditto and pFedMe use it with other anchors. It is fastest if the anchors are the very tensors that the
    phase starts from, as in ``received.beside("anchor", received)``: linear layers then keep their dual form.

    Attributes:
        strength: Weight of the term.
        anchor: Prefix of the anchor's tensors, such as ``anchor`` for ``anchor.fc1.weight``.
    """

    strength: float
    anchor: str = "anchor"

    def __call__(self, tensors: Tree, beside: Tree) -> Tree:
        """``strength * (w - anchor)``."""
        anchors = anchors_of(tensors, beside, self.anchor)
        return {name: torch.sub(tensor, anchors[name]).mul_(self.strength) for name, tensor in tensors.items()}


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
        return {name: -self.strength * anchor for name, anchor in anchors_of(tensors, beside, self.anchor).items()}


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
        total: Tree = {}
        for penalty in self.penalties:
            add_to(total, penalty(tensors, beside))
        return total


def anchors_of(tensors: Tree, beside: Tree, prefix: str) -> Tree:
    """The anchor of each tensor.

    Raises:
        PflError: If there is none.
    """
    if missing := [name for name in tensors if f"{prefix}.{name}" not in beside]:
        raise PflError(f"phase.penalty: there is no {prefix}.{missing[0]}; add the anchors by Params.beside")
    return {name: beside[f"{prefix}.{name}"] for name in tensors}
