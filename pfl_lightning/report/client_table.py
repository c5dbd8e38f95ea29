"""Reads ``clients.csv``: the results of every client, at every evaluation."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.errors import PflError
from pfl_lightning.quantity import LOSS, Quantity
from pfl_lightning.report.run_files import read_table

if TYPE_CHECKING:
    import pandas as pd

EVALUATION, RESULTS = ["split", "model", "round"], ["client", "samples", "correct", "loss"]

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
"""The results by split, evaluated model and number of rounds completed."""


def read_client_table(path: Path) -> "pd.DataFrame":
    """Read the table. The last evaluation is left out if clients are missing: it may be being written.

    Raises:
        PflError: If the table cannot be read, or other evaluations have different clients.
    """
    table = read_table(path, [*EVALUATION, *RESULTS])
    sizes = table.groupby("round").size()
    if len(sizes) and sizes.iloc[-1] < sizes.iloc[0]:
        table, sizes = table[table["round"] < sizes.index[-1]], sizes[:-1]
    if sizes.nunique() > 1:
        raise PflError(f"runs: '{path}' has more clients in some rounds than in others; allowed: tables of pfl fit")
    return table


def read_clients(path: Path) -> Evaluations:
    """Read the table by evaluations; see ``read_client_table``."""
    return {
        (split, model, int(at)): Clients(*(rows[name].to_numpy() for name in RESULTS))
        for (split, model, at), rows in read_client_table(path).sort_values("client").groupby(EVALUATION)
    }
