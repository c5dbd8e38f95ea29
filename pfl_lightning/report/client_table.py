"""Reads ``clients.csv``: the results of every client, at every evaluation."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.quantity import LOSS, Quantity

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Clients(NamedTuple):
    """The clients that have samples of a split, in the order of their ids.

    Attributes:
        ids: Client ids, ``[clients]``.
        samples: Number of evaluated samples, ``[clients]``.
        correct: Number of correct predictions, ``[clients]``.
        loss: Mean loss, ``[clients]``.
    """

    ids: Ints
    samples: Ints
    correct: Ints
    loss: Floats

    def scores(self, quantity: Quantity) -> Floats:
        """The accuracy or the loss of each client, ``[clients]``."""
        return self.loss if quantity == LOSS else self.correct / self.samples


Evaluations = Mapping[tuple[str, str, int], Clients]
"""The results by split, judged model and number of rounds completed."""


def read_clients(path: Path) -> Evaluations:
    """Read the whole table once."""
    found: dict[tuple[str, str, int], list[tuple[int, int, int, float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            client = int(row["client"]), int(row["samples"]), int(row["correct"]), float(row["loss"])
            found.setdefault((row["split"], row["model"], int(row["round"])), []).append(client)
    return {key: Clients(*map(np.array, zip(*sorted(clients), strict=True))) for key, clients in found.items()}
