"""Small data of very unequal clients, on which parts of a run are tried."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.random import Generator

from pfl_lightning.data import FederatedDataModule, Labels, Numbers, Partition, Parts, Population
from pfl_lightning.data.labelled import LabelledData

SAMPLES = 120  # of each split


class Squares(Partition):
    """Clients with 1, 4, 9, 16, ... samples, without regard to their classes."""

    def split(
        self, splits: Sequence[Labels], num_classes: int, population: Population, rng: Generator
    ) -> Sequence[Parts]:
        """See ``Partition``."""
        sizes = np.arange(1, population.num_clients + 1) ** 2
        return [np.split(rng.permutation(len(split.classes))[: sizes.sum()], sizes.cumsum()[:-1]) for split in splits]


class UnequalClients(FederatedDataModule):
    """Random images of one class each, which a network can learn, of clients of which one has a single sample.

    Args:
        num_clients: Number of clients, at most 7, of which the last has what the others leave.
        kwargs: See ``FederatedDataModule``.
    """

    num_classes = 3
    input_shape = (1, 16, 16)

    def __init__(self, num_clients: int = 6, **kwargs: Any) -> None:
        super().__init__(num_clients=num_clients, partition=Squares(), **kwargs)

    def load(self) -> tuple[LabelledData, LabelledData]:
        """Samples for training, and for testing."""
        source = torch.Generator().manual_seed(0)
        inputs = torch.randn(2 * SAMPLES, *self.input_shape, generator=source, dtype=torch.float64)
        targets = inputs.flatten(1)[:, : self.num_classes].argmax(1)
        inputs = inputs.to(torch.get_default_dtype())
        return (
            LabelledData(inputs[:SAMPLES], targets[:SAMPLES]),
            LabelledData(inputs[SAMPLES:], targets[SAMPLES:]),
        )

    def transform(self) -> Numbers:
        """The numbers as they are."""
        return Numbers()


class TwoClasses(UnequalClients):
    """The same with two classes, for which networks have one output."""

    num_classes = 2
