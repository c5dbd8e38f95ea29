"""A partition of your own, for docs/own/partition.md."""

from collections.abc import Sequence

import numpy as np

from pfl_lightning.bounds import PositiveInt, Share
from pfl_lightning.data import ClassPartition, Indices, Labels, Partition, Parts, Population, Shares


class Specialists(ClassPartition):
    """Every client is a specialist for one class, and has a little of all others.

    Args:
        focus: Share of each class that goes to its specialists; the rest is dealt evenly.
    """

    def __init__(self, focus: Share = 0.8) -> None:
        self.focus = focus

    def shares(self, class_sizes: Indices, population: Population, rng: np.random.Generator) -> Shares:
        """Shares of every class, ``[classes, clients]``."""
        clients, classes = population.num_clients, len(class_sizes)
        speciality = rng.permutation(np.arange(clients) % classes)
        is_specialist = speciality == np.arange(classes)[:, None]
        experts = is_specialist / np.maximum(is_specialist.sum(1, keepdims=True), 1)
        return self.focus * experts + (1 - self.focus) / clients


class FastestFirst(Partition):
    """The fastest client has the most samples, the slowest the fewest.

    Args:
        ratio: How many times as many samples the fastest client has as the slowest.
    """

    def __init__(self, ratio: PositiveInt = 4) -> None:
        self.ratio = ratio

    def split(
        self, splits: Sequence[Labels], num_classes: int, population: Population, rng: np.random.Generator
    ) -> Sequence[Parts]:
        """Cut each split, shuffled, at the same places: one array of sample numbers for each client."""
        ranks = population.times.argsort().argsort()
        weights = np.linspace(self.ratio, 1, population.num_clients)[ranks]
        cuts = weights.cumsum()[:-1] / weights.sum()
        orders = [rng.permutation(len(labels.classes)) for labels in splits]
        return [np.split(order, (cuts * len(order)).astype(int)) for order in orders]
