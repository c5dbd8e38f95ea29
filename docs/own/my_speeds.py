"""Speeds of your own, for docs/own/speeds.md."""

import numpy as np

from pfl_lightning.bounds import ClosedUnitInterval, PositiveFloat, Seed
from pfl_lightning.system import FixedSpeeds, Speeds, Times


class Pareto(FixedSpeeds):
    """Times with a heavy tail, drawn once: a few clients are very slow.

    Args:
        tail: Exponent of the tail; with a smaller one the slowest are slower.
        seed: Seed of the times alone.
    """

    def __init__(self, tail: PositiveFloat = 2.0, seed: Seed = 0) -> None:
        super().__init__(seed)
        self.tail = tail

    def draw(self, random: np.random.RandomState, num_clients: int) -> Times:
        """One draw for each client, at least 1 second."""
        return 1 + random.pareto(self.tail, num_clients)


class DayAndNight(Speeds):
    """Clients on two sides of the world: each computes slowly while its owner is awake, twelve rounds of 24.

    Args:
        slowdown: By how much a client is slower by day.
        east: Share of the clients whose day comes first.
        seed: Seed of who is where.
    """

    def __init__(self, slowdown: PositiveFloat = 5.0, east: ClosedUnitInterval = 0.5, seed: Seed = 0) -> None:
        super().__init__(seed)
        self.slowdown, self.east = slowdown, east

    def times(self, round_index: int, num_clients: int) -> Times:
        """1 second by night and ``slowdown`` seconds by day, ``[num_clients]``."""
        is_east = np.random.RandomState(self.seed).uniform(size=num_clients) < self.east
        is_day = is_east == (round_index % 24 < 12)
        return np.where(is_day, self.slowdown, 1.0)

    def mean_times(self, num_clients: int) -> Times:
        """All clients are equally fast on average."""
        return np.full(num_clients, (1 + self.slowdown) / 2)
