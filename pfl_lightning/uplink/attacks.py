"""Attacks: what a share of the clients sends in place of its models."""

from abc import abstractmethod
from functools import cache

import torch
from torch import Tensor

from pfl_lightning.bounds import ROUNDING, ClosedUnitInterval, PositiveFloat
from pfl_lightning.seeding import random_bits
from pfl_lightning.tree import Tree, select, wide
from pfl_lightning.uplink.steps import Senders, Step, alike


class Attack(Step):
    """Some clients send other parameters than those that they have trained, always the same clients.

    They are drawn from all clients by the seed of the run. What clients keep, statistics of BatchNorm, and what else
    they upload, such as their losses, stay as they are.

    Args:
        share: Share of the clients that attack, rounded down to whole clients.
    """

    def __init__(self, share: ClosedUnitInterval = 0.2) -> None:
        self.share = share

    @abstractmethod
    def forged(self, rows: Tree, senders: Senders) -> Tree:
        """What these clients would send if all of them attacked; arguments as for ``Step``, parameters alone."""

    def __call__(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Step``."""
        attacks = attackers(int(senders.key[0]), senders.num_clients, float(self.share)).to(senders.ids.device)
        attacks = attacks[senders.ids]
        parameters = select(rows, senders.parameters)
        forged = alike(parameters, self.forged(parameters, senders), type(self).__name__)
        return {**rows, **{name: forged[name].where(wide(attacks, stack), stack) for name, stack in parameters.items()}}


class SignFlip(Attack):
    """Attackers turn their change around: ``w_i = x - scale * (w_i - x)``, where x is what they received.

    Paper: Li, Xu, Chen, Giannakis, Ling, RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning
    from Heterogeneous Datasets, AAAI 2019, arXiv:1811.03761.

    Args:
        share: See ``Attack``.
        scale: By how much the change is scaled.
    """

    def __init__(self, share: ClosedUnitInterval = 0.2, scale: PositiveFloat = 1.0) -> None:
        super().__init__(share)
        self.scale = scale

    def forged(self, rows: Tree, senders: Senders) -> Tree:
        """See ``Attack``."""
        received = senders.received.tree
        return {name: received[name] - self.scale * (stack - received[name]) for name, stack in rows.items()}


@cache
def attackers(seed: int, num_clients: int, share: float) -> Tensor:
    """Whether each client of a run attacks, ``[clients]``."""
    order = random_bits((seed, "attackers"), torch.arange(num_clients), 1)[:, 0].argsort()
    attacks = torch.zeros(num_clients, dtype=torch.bool)
    attacks[order[: int(share * num_clients + ROUNDING)]] = True
    return attacks
