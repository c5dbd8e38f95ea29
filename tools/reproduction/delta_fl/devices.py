"""Delta-FL's Table 1: how many devices there are, and how many samples they hold."""

from typing import NamedTuple

import numpy as np
from rich.console import Console

from pfl_lightning.data import FederatedDataModule
from pfl_lightning.report import partition_table
from reproduction.claims import Claim, fact
from reproduction.runs import Place, split_data


class Devices(NamedTuple):
    """A row of Table 1.

    Attributes:
        train: Number of training devices.
        test: Number of test devices.
        median: Median of the samples of a training device.
        smallest: Samples of the smallest one.
        largest: Samples of the largest one.
    """

    train: int
    test: int
    median: float
    smallest: int
    largest: int


TABLE: dict[str, Devices] = {
    "femnist_linear": Devices(865, 865, 179, 101, 447),
    "sent140_linear": Devices(438, 439, 69, 51, 549),
    "shakespeare_rnn": Devices(544, 545, 1288, 101, 66963),
}
MEDIAN = 0.1  # by which the median of another random half of the users may differ, as a share


def device_claims(place: Place) -> list[Claim]:
    """Show how the data are split; at full scale, compare them with Table 1."""
    data = split_data(place.options)
    Console().print(partition_table(data.class_counts()))
    return row_claims(measured(data), TABLE[place.pair]) if place.scale == "full" else []


def measured(data: FederatedDataModule) -> Devices:
    """The row of Table 1 for some data."""
    counts = data.training_counts
    held = [int(counts.min()), int(counts.max())]
    return Devices(len(counts), data.num_clients - len(counts), float(np.median(counts)), *held)


def row_claims(found: Devices, paper: Devices) -> list[Claim]:
    """The devices are as many as in the paper, and about as large; which users train is random."""
    numbers = f"{found.train}, {found.test}"
    sizes = f"{found.smallest}, {found.median:g}, {found.largest}"
    near = abs(found.median / paper.median - 1) <= MEDIAN
    return [
        fact("training and test devices", numbers, f"{paper.train}, {paper.test}", found[:2] == paper[:2]),
        fact(
            "samples of the smallest, the median and the largest training device",
            sizes,
            f"{paper.smallest}, {paper.median:g} ± {MEDIAN:.0%}, {paper.largest} in one half",
            found.smallest == paper.smallest and near,
        ),
    ]
