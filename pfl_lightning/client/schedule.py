"""The factor of the local learning rates in each round, by a scheduler of torch."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, StepLR

from pfl_lightning.errors import PflError, one_line

KEY = "model.local.lr_schedule"
LRSchedule = Callable[[Optimizer], LRScheduler]


class Schedule:
    """Replays a scheduler that steps once a round on a learning rate of 1, and remembers the rate of each round.

    A round's factor depends on nothing else, so there is nothing to save, and a run that resumes goes on exactly.

    Args:
        make: Makes the scheduler for an optimizer; None for that of ``decay``.
        decay: Factor applied every ``every`` rounds, as in ``StepLR``.
        every: Rounds between two of them.

    Raises:
        PflError: If both a scheduler and a decay are given.
    """

    def __init__(self, make: LRSchedule | None = None, decay: float = 1.0, every: int = 1) -> None:
        if make is not None and decay != 1:
            raise PflError(f"model.local.lr_decay: {decay} is not possible with model.local.lr_schedule; allowed: 1")
        self.make: LRSchedule = make or partial(StepLR, step_size=every, gamma=decay)
        self.is_constant = make is None and decay == 1
        self.factors: list[float] = []

    def factor(self, round_index: int) -> float:
        """The factor in a round.

        Raises:
            PflError: If the scheduler cannot be made, fails on the way to that round, or gives no rate from 0.
        """
        if self.is_constant:
            return 1.0
        if round_index >= len(self.factors):
            self.factors = self._replayed(round_index + 1)
        return self.factors[round_index]

    def _replayed(self, rounds: int) -> list[float]:
        """The factors of the first rounds."""
        optimizer = SGD([torch.zeros(())], lr=1.0)
        factors: list[float] = []
        try:
            scheduler = self.make(optimizer)
            if isinstance(scheduler, ReduceLROnPlateau):
                raise PflError(
                    "model.local.lr_schedule: ReduceLROnPlateau needs a metric; allowed: one that counts rounds"
                )
            while len(factors) < rounds:
                if factors:
                    optimizer.step()  # which a scheduler wants to see before its own step
                    scheduler.step()
                factors.append(float(optimizer.param_groups[0]["lr"]))
        except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
            raise PflError(
                f"model.local.lr_schedule: not possible in round {len(factors)}: {one_line(error)}"
            ) from error
        if wrong := [(place, factor) for place, factor in enumerate(factors) if not 0 <= factor < math.inf]:
            place, factor = wrong[0]
            raise PflError(
                f"model.local.lr_schedule: the factor must be finite and at least 0, got {factor:g} in round {place}"
            )
        return factors
