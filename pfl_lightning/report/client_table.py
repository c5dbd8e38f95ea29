"""Reads ``clients.csv``: the results of every client, at every evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pfl_lightning.errors import PflError
from pfl_lightning.quantity import LOSS, Quantity
from pfl_lightning.report.run_files import Row, read_table, whole_number

COLUMNS = ("round", "split", "model", "client", "samples", "correct", "loss")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Clients(NamedTuple):
    """The clients that have samples of a split, in the order of their ids.

    Attributes:
        ids: Client ids, ``[clients]``.
        samples: Number of evaluated samples, ``[clients]``.
        correct: Number of correct predictions, ``[clients]``.
        loss: Mean loss, ``[clients]``.
        others: What other metrics say of each client, by their names, ``[clients]``; nan for nothing.
    """

    ids: Ints
    samples: Ints
    correct: Ints
    loss: Floats
    others: Mapping[str, Floats]

    def scores(self, quantity: Quantity) -> Floats:
        """The accuracy or the loss of each client, ``[clients]``."""
        return self.loss if quantity == LOSS else self.correct / self.samples


Evaluations = Mapping[tuple[str, str, int], Clients]
"""The results by split, evaluated model and number of rounds completed."""


def read_clients(path: Path) -> Evaluations:
    """Read the whole table once. The last evaluation is left out if clients are missing: it may be being written.

    Raises:
        PflError: If the table cannot be read, or holds what no evaluation gives.
    """
    found: dict[tuple[str, str, int], dict[int, tuple[float, ...]]] = {}

    def add(row: Row) -> None:
        key = row["split"], row["model"], whole_number(row["round"])
        client, samples, correct = whole_number(row["client"]), whole_number(row["samples"], 1), int(row["correct"])
        if not 0 <= correct <= samples:
            raise ValueError(f"{correct} correct predictions of {samples} samples")
        if client in found.setdefault(key, {}):
            raise ValueError(f"client {client} is there twice")
        others = (float(cell or "nan") for name, cell in row.items() if name not in COLUMNS)
        found[key][client] = client, samples, correct, float(row["loss"]), *others

    names, _ = read_table(path, COLUMNS, add)
    others = [name for name in names if name not in COLUMNS]
    rounds = sorted({round_index for *_, round_index in found})
    evaluated = [{key[:2]: rows.keys() for key, rows in found.items() if key[2] == at} for at in rounds]
    whole = [clients == evaluated[0] for clients in evaluated]
    if not all(whole[:-1]):
        at = rounds[whole.index(False)]
        raise PflError(f"runs: '{path}' has other clients in round {at} than in round {rounds[0]}")
    kept = rounds if all(whole) else rounds[:-1]
    return {
        key: _clients([rows[client] for client in sorted(rows)], others)
        for key, rows in found.items()
        if key[2] in kept
    }


def _clients(rows: Sequence[tuple[float, ...]], others: Sequence[str]) -> Clients:
    """The rows of an evaluation, by rising id."""
    ids, samples, correct, loss, *more = map(np.array, zip(*rows, strict=True))
    return Clients(ids, samples, correct, loss, dict(zip(others, more, strict=True)))
