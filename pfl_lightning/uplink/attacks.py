"""Attacks: what some of the clients send in place of their models."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval, NonNegativeFloat, PositiveFloat, Real
from pfl_lightning.seeding import random_bits
from pfl_lightning.system import Attackers
from pfl_lightning.tree import Tree, select, wide
from pfl_lightning.uplink.steps import Senders, Step, alike

NEVER = 1e-15  # probability of draws that are so far out that they are drawn in


class Attack(Attackers, Step):
    """Some clients send other parameters than those that they have trained.

    What clients keep, statistics of BatchNorm, and what else they upload, such as their losses, stay as they are.
    """

    @abstractmethod
    def forged(self, rows: Tree, senders: Senders) -> Tree:
        """What these clients would send if all of them attacked; arguments as for ``Step``, parameters alone."""

    def attacking(self, senders: Senders) -> Tensor:
        """Which of the clients attack in this round, ``[clients]``."""
        if senders.round_index < self.first_round:
            return torch.zeros_like(senders.ids, dtype=torch.bool)
        return self.among(int(senders.key[0]), senders.num_clients).to(senders.ids.device)[senders.ids]

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``."""
        attacks = self.attacking(senders)
        parameters = select(rows, senders.parameters)
        forged = alike(parameters, self.forged(parameters, senders), type(self).__name__)
        return {**rows, **{name: forged[name].where(wide(attacks, stack), stack) for name, stack in parameters.items()}}


class Scaled(Attack):
    """Attackers send a multiple of their change, so that it outweighs those of others: ``w_i = x + scale * (w_i - x)``.

    Here x is what they received.

    Paper: Bagdasaryan, Veit, Hua, Estrin, Shmatikov, How To Backdoor Federated Learning, AISTATS 2020,
    arXiv:1807.00459 (model replacement).

    Args:
        share: See ``Attackers``.
        scale: By how much the change is multiplied.
    """

    def __init__(self, share: ClosedUnitInterval = 0.2, scale: Real = 10.0, **kwargs: Any) -> None:
        super().__init__(share, **kwargs)
        self.scale = scale

    def forged(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Attack``."""
        return stretched(rows, senders, float(self.scale))


class SignFlip(Attack):
    """Attackers turn their change around: ``w_i = x - scale * (w_i - x)``, where x is what they received.

    Paper: Li, Xu, Chen, Giannakis, Ling, RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning
    from Heterogeneous Datasets, AAAI 2019, arXiv:1811.03761.

    Args:
        share: See ``Attackers``.
        scale: By how much the change is scaled.
    """

    def __init__(self, share: ClosedUnitInterval = 0.2, scale: PositiveFloat = 1.0, **kwargs: Any) -> None:
        super().__init__(share, **kwargs)
        self.scale = scale

    def forged(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Attack``."""
        return stretched(rows, senders, -float(self.scale))


class Gaussian(Attack):
    """Attackers send noise: every entry of the change is drawn anew from a Gaussian with mean 0.

    Paper: Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient
    Descent, NeurIPS 2017, arXiv:1703.02757.

    Args:
        share: See ``Attackers``.
        deviation: The standard deviation.
    """

    def __init__(self, share: ClosedUnitInterval = 0.2, deviation: PositiveFloat = 1.0, **kwargs: Any) -> None:
        super().__init__(share, **kwargs)
        self.deviation = deviation

    def forged(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Attack``."""
        received = senders.received.tree
        return {name: received[name] + self._noise(name, stack, senders) for name, stack in rows.items()}

    def _noise(self, name: str, stack: Tensor, senders: Senders) -> Tensor:
        """The changes of a tensor, ``[clients, ...]``, which depend on the round, its name and the client alone."""
        bits = random_bits((*senders.key, "noise", name), senders.ids, stack[0].numel())
        levels = (bits.double() * 2.0**-63).clamp(NEVER, 1 - NEVER)
        draws: Tensor = torch.special.ndtri(levels) * float(self.deviation)
        return draws.view_as(stack).to(stack)


class Collusion(Attack):
    """Attackers know the models of all others in the round, and all send the same one.

    Rule; m and s are the mean and the standard deviation of the honest clients' changes, entry by entry, and x what
    they received: ``w_i = x + along * m - across * s``. Without honest clients in a round they do nothing.

    The models must be seen together, so the server needs a vote, such as ``Mean``.
    """

    together = True

    @abstractmethod
    def factors(self, changes: Tree, mean: Tree, deviation: Tree, attackers: int) -> tuple[float, float]:
        """The numbers ``along`` and ``across``.

        Args:
            changes: Those of the honest clients, float64 ``[honest, ...]`` each.
            mean: Their mean, ``[...]`` each.
            deviation: Their standard deviation, ``[...]`` each, which divides by their number.
            attackers: Number of attackers in the round.
        """

    def forged(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Attack``."""
        attacks = self.attacking(senders)
        if attacks.all() or not attacks.any():
            return rows
        received = senders.received.tree
        changes = {name: stack[~attacks].double() - received[name] for name, stack in rows.items()}
        mean = {name: stack.mean(0) for name, stack in changes.items()}
        deviation = {name: stack.std(0, correction=0) for name, stack in changes.items()}
        along, across = self.factors(changes, mean, deviation, int(attacks.sum()))
        sent = {name: along * mean[name] - across * deviation[name] for name in rows}
        return {name: (received[name] + sent[name]).to(stack).expand_as(stack) for name, stack in rows.items()}


class ALIE(Collusion):
    """A little is enough: attackers stay within the spread of the honest clients, at its edge: m - z s.

    Paper: Baruch, Baruch, Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS 2019,
    arXiv:1902.06156, Algorithm 3.

    Differs: without a ``z``, one that follows from the numbers of clients is not below 0, which helps the server (it
    is for one attacker, and two of an even number of clients).

    Args:
        share: See ``Attackers``.
        z: How far from the mean, in standard deviations. Default: the largest at which half of the clients are further
            out, ``Phi^-1((n - f - s) / (n - f))`` with ``s = floor(n / 2) + 1 - f``, of n clients and f attackers.
    """

    def __init__(self, share: ClosedUnitInterval = 0.2, z: NonNegativeFloat | None = None, **kwargs: Any) -> None:
        super().__init__(share, **kwargs)
        self.z = z

    def factors(self, changes: Tree, mean: Tree, deviation: Tree, attackers: int) -> tuple[float, float]:
        """See ``Collusion``."""
        return 1.0, largest_z(len(next(iter(changes.values()))), attackers) if self.z is None else float(self.z)


class IPM(Collusion):
    """Inner product manipulation: attackers send a multiple of the honest clients' mean, turned around: -scale m.

    A mean turns with f of n attackers for a scale above (n - f) / f.

    Paper: Xie, Koyejo, Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, UAI 2019,
    arXiv:1903.03936.

    Args:
        share: See ``Attackers``.
        scale: The multiple.
    """

    def __init__(self, share: ClosedUnitInterval = 0.2, scale: PositiveFloat = 0.1, **kwargs: Any) -> None:
        super().__init__(share, **kwargs)
        self.scale = scale

    def factors(self, changes: Tree, mean: Tree, deviation: Tree, attackers: int) -> tuple[float, float]:
        """See ``Collusion``."""
        return -float(self.scale), 0.0


class MinMax(Collusion):
    """As far from the honest clients' mean as they are from each other: m - g s.

    Rule: g is the largest number with ``max_i |m - g s - u_i| <= max_ij |u_i - u_j|`` over the honest changes u.

    Paper: Shejwalkar, Houmansadr, Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for
    Federated Learning, NDSS 2021, doi:10.14722/ndss.2021.24498.

    Differs: the paper looks for g by halving an interval, here it is the root of a quadratic equation.
    """

    def factors(self, changes: Tree, mean: Tree, deviation: Tree, attackers: int) -> tuple[float, float]:
        """See ``Collusion``."""
        honest = torch.cat([stack.flatten(1) for stack in changes.values()], 1)
        from_mean = torch.cat([tensor.flatten() for tensor in mean.values()]) - honest
        across = torch.cat([tensor.flatten() for tensor in deviation.values()])
        bound = torch.cdist(honest, honest, compute_mode="donot_use_mm_for_euclid_dist").max() ** 2
        size = across @ across
        if size == 0:
            return 1.0, 0.0
        along = from_mean @ across
        room = bound - (from_mean**2).sum(1)
        return 1.0, float(((along + (along**2 + size * room).sqrt()) / size).min())


def stretched(rows: Tree, senders: Senders, factor: float) -> Tree:
    """Models whose change is multiplied by a factor, ``[clients, ...]`` each."""
    received = senders.received.tree
    return {name: received[name] + factor * (stack - received[name]) for name, stack in rows.items()}


def largest_z(honest: int, attackers: int) -> float:
    """The default of ``ALIE``, for so many clients."""
    supporters = (honest + attackers) // 2 + 1 - attackers
    share = torch.tensor((honest - supporters) / honest, dtype=torch.float64)
    return max(float(torch.special.ndtri(share.clamp(NEVER, 1 - NEVER))), 0.0)
