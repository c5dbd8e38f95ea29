"""Data sets of your own, for docs/own/data.md."""

from typing import Any

import numpy as np
import torch

from pfl_lightning.data import FederatedDataModule, ImageTransform, LabelledData, NaturalUsers, OwnData, RawData


class Sensors(OwnData):
    """Readings of machines that drift apart: all else follows from the arrays.

    Args:
        drift: How far the machines' readings are shifted against each other.
    """

    def __init__(self, drift: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drift = drift

    def read(self) -> tuple[RawData, None]:
        """Five machines with 60 readings of 8 numbers each; the class is the sign of their sum."""
        random = np.random.default_rng(0)
        machines = np.repeat(["press", "lathe", "drill", "saw", "mill"], 60)
        shifts = dict(zip(np.unique(machines), random.normal(0, self.drift, (5, 8)), strict=True))
        readings = random.standard_normal((300, 8))
        faults = np.where(readings.sum(1) > 0, "faulty", "fine")
        return RawData(readings + np.stack([shifts[machine] for machine in machines]), faults, machines), None


class Stripes(FederatedDataModule):
    """Images with stripes, across or down: every part is said explicitly.

    Every user has stripes of its own brightness.
    """

    num_classes = 2
    input_shape = (1, 16, 16)
    usual_partition = NaturalUsers

    def load(self) -> tuple[LabelledData, None]:
        """Draw 40 images for each of 20 users."""
        random = torch.Generator().manual_seed(0)
        users = torch.arange(20).repeat_interleave(40)
        targets = torch.randint(0, 2, (800,), generator=random)
        images = torch.randint(0, 100, (800, 1, 16, 16), generator=random, dtype=torch.uint8)
        across, down = images[targets == 0], images[targets == 1]
        across[:, :, ::4] += (5 * users[targets == 0] + 50).byte()[:, None, None, None]
        down[:, :, :, ::4] += (5 * users[targets == 1] + 50).byte()[:, None, None, None]
        images[targets == 0], images[targets == 1] = across, down
        return LabelledData(images, targets, users), None

    def transform(self) -> ImageTransform:
        """Centre and scale the grey values."""
        return ImageTransform(mean=[0.25], std=[0.15])
