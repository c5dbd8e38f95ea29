"""Penalty terms on the clients' local losses, for ``Phase.penalty``. Each class computes the gradient of its term."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pfl_lightning.client.phase import Rule
from pfl_lightning.errors import PflError
from pfl_lightning.tree import Tree, wide


class Slope(NamedTuple):
    """The gradient of a penalty by a parameter w, as separate terms: ``of_parameter * w + sum_i scale_i * tensor_i``.

    Attributes:
        of_parameter: Factor of the parameter itself.
        terms: The scales and the other tensors.
    """

    of_parameter: float = 0.0
    terms: tuple[tuple[float, Tensor], ...] = ()

    def added_to(self, grad: Tensor, parameter: Tensor) -> Tensor:
        """The sum of ``grad`` and this gradient, in a new tensor unless this one is zero."""
        if self.of_parameter:
            grad = torch.add(grad, parameter, alpha=self.of_parameter)
        for scale, tensor in self.terms:
            grad = torch.add(grad, tensor, alpha=scale)
        return grad


class Penalty(ABC):
    """A term added to the local loss. Its gradient stays a list of terms, which takes no memory of its own."""

    @abstractmethod
    def slopes(self, tensors: Tree, extras: Tree) -> dict[str, Slope]:
        """The gradient, by parameter name.

        Args:
            tensors: The parameters, ``[clients, ...]`` each.
            extras: Extra tensors such as anchors, ``[clients, ...]`` or shared ``[...]``.
        """

    def __call__(self, tensors: Tree, extras: Tree) -> Tree:
        """The gradient."""
        return {
            name: slope.added_to(torch.zeros_like(tensors[name]), tensors[name])
            for name, slope in self.slopes(tensors, extras).items()
        }


@dataclass(frozen=True)
class Proximity(Penalty):
    """Proximal term ``strength / 2 * |w - anchor|^2``, which pulls the parameters towards an anchor.

    The term of FedProx (Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127,
    eq. (2)); Ditto and pFedMe use it with other anchors. It is fastest if the anchors are the very tensors that the
    phase starts from, as in ``received.beside("anchor", received)``: linear layers can then use the dual form.

    Attributes:
        strength: Weight of the term.
        anchor: Prefix of the anchor's tensors, such as ``anchor`` for ``anchor.fc1.weight``.
    """

    strength: float
    anchor: str = "anchor"

    def slopes(self, tensors: Tree, extras: Tree) -> dict[str, Slope]:
        """``strength * (w - anchor)``."""
        anchors = anchors_of(tensors, extras, self.anchor)
        return {name: Slope(self.strength, ((-self.strength, anchor),)) for name, anchor in anchors.items()}


@dataclass(frozen=True)
class Correlation(Penalty):
    """Correlation term ``-strength * <w, anchor>``, which rewards agreement with an anchor.

    The term of FedMac (Liu et al., Sparse Personalized Federated Learning, arXiv:2107.05330).

    Attributes:
        strength: Weight of the term.
        anchor: Prefix of the anchor's tensors.
    """

    strength: float
    anchor: str = "anchor"

    def slopes(self, tensors: Tree, extras: Tree) -> dict[str, Slope]:
        """``-strength * anchor``."""
        anchors = anchors_of(tensors, extras, self.anchor)
        return {name: Slope(terms=((-self.strength, anchor),)) for name, anchor in anchors.items()}


@dataclass(frozen=True)
class Cosine(Penalty):
    """Term ``-strength * cos(w, anchor)`` of all parameters in a row, which turns them towards an anchor.

    The term of pFedGraph (Ye et al., Personalized Federated Learning with Inferred Collaboration Graphs, ICML 2023).
    Zeros have no direction: where all parameters or all of the anchor are 0, the cosine is 0, and so is its gradient.

    Attributes:
        strength: Weight of the term.
        anchor: Prefix of the anchor's tensors.
    """

    strength: float
    anchor: str = "anchor"

    def slopes(self, tensors: Tree, extras: Tree) -> dict[str, Slope]:
        """``strength * (cos * w / |w|^2 - anchor / (|w| |anchor|))``."""
        anchors = anchors_of(tensors, extras, self.anchor)
        anchors = {name: anchor.expand_as(tensors[name]) for name, anchor in anchors.items()}
        squares = _inner_products(tensors, tensors)
        scale = (squares * _inner_products(anchors, anchors)).sqrt()
        scale = scale.where(scale > 0, torch.inf)
        cosine = _inner_products(tensors, anchors) / scale
        of_parameter = self.strength * cosine / squares.where(squares > 0, 1)
        slopes = {}
        for name, tensor in tensors.items():
            slope = wide(of_parameter, tensor) * tensor - wide(self.strength / scale, tensor) * anchors[name]
            slopes[name] = Slope(terms=((1.0, slope),))
        return slopes


@dataclass(frozen=True)
class SmoothL1(Penalty):
    """Smoothed L1 term ``strength * sum smoothing * log cosh(w / smoothing)``, which favours small parameters.

    For each parameter, the term lies between ``|w| - smoothing * log 2`` and ``|w|``. Parameters become small, but not
    exactly zero.

    Attributes:
        strength: Weight of the term.
        smoothing: Width of the region around zero where ``|w|`` is rounded.
    """

    strength: float
    smoothing: float

    def slopes(self, tensors: Tree, extras: Tree) -> dict[str, Slope]:
        """``strength * tanh(w / smoothing)``."""
        signs = {name: torch.div(tensor, self.smoothing).tanh_() for name, tensor in tensors.items()}
        return {name: Slope(terms=((self.strength, sign),)) for name, sign in signs.items()}


@dataclass(frozen=True)
class Ridge(Penalty):
    """Term ``strength / 2 * |w|^2`` of some parameters, biases too, beside ``weight_decay``.

    Attributes:
        strength: Weight of the term.
        names: Names of the parameters.
    """

    strength: float
    names: frozenset[str]

    def slopes(self, tensors: Tree, extras: Tree) -> dict[str, Slope]:
        """``strength * w``."""
        return {name: Slope(self.strength) for name in tensors if name in self.names}


@dataclass(frozen=True)
class Total(Penalty):
    """Sum of several penalties.

    Attributes:
        penalties: The penalties to add up.
    """

    penalties: tuple[Rule, ...]

    def slopes(self, tensors: Tree, extras: Tree) -> dict[str, Slope]:
        """The sum of their gradients."""
        result: dict[str, Slope] = {}
        for penalty in self.penalties:
            for name, (of_parameter, terms) in slopes_of(penalty, tensors, extras).items():
                before = result.get(name, Slope())
                result[name] = Slope(before.of_parameter + of_parameter, before.terms + terms)
        return result


def total(*penalties: Penalty | None) -> Penalty | None:
    """The sum of those penalties that are not None; None if there are none."""
    present = tuple(penalty for penalty in penalties if penalty is not None)
    return Total(present) if len(present) > 1 else next(iter(present), None)


def slopes_of(rule: Rule | None, tensors: Tree, extras: Tree) -> Mapping[str, Slope]:
    """The gradient of any penalty rule, by parameter name; empty for None."""
    if rule is None:
        return {}
    if isinstance(rule, Penalty):
        return rule.slopes(tensors, extras)
    return {name: Slope(terms=((1.0, grad),)) for name, grad in rule(tensors, extras).items()}


def _inner_products(one: Tree, other: Tree) -> Tensor:
    """The inner product of each client's tensors in a row, ``[clients]``."""
    parts = [(tensor * other[name]).reshape(len(tensor), -1).sum(1) for name, tensor in one.items()]
    return torch.stack(parts).sum(0)


def anchors_of(tensors: Tree, extras: Tree, prefix: str) -> Tree:
    """The anchor of each tensor.

    Raises:
        PflError: If one is missing.
    """
    if missing := [name for name in tensors if f"{prefix}.{name}" not in extras]:
        raise PflError(f"phase.penalty: there is no {prefix}.{missing[0]}; add the anchors with Params.beside")
    return {name: extras[f"{prefix}.{name}"] for name in tensors}
