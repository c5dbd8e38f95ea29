"""What a score has cost: rounds, communication, training."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pfl_lightning.report.client_table import Floats
from pfl_lightning.report.compare_curves import Curve
from pfl_lightning.report.compare_runs import BITS, SAMPLES
from pfl_lightning.report.tables import bit_unit, sample_unit


class Cost(NamedTuple):
    """What can be counted up to each evaluation, beside simulated time.

    Attributes:
        name: Name in files and columns.
        words: What is counted, in words.
        of: The count of a curve, ``[seeds, evaluations]``.
        unit: A unit for counts up to the largest: its size, and its name.
        tag: The logged count, which older runs lack; empty if all runs have it.
    """

    name: str
    words: str
    of: Callable[[Curve], Floats]
    unit: Callable[[float], tuple[float, str]]
    tag: str = ""

    def known(self, curves: Sequence[Curve]) -> bool:
        """Whether all curves have the count."""
        return not self.tag or all(curve.counts(self.tag) for curve in curves)


ROUNDS = Cost(
    "rounds",
    "communication rounds",
    lambda curve: np.tile(curve.rounds.astype(float), (len(curve.runs), 1)),
    lambda largest: (1.0, "rounds"),
)
COMMUNICATION = Cost("bits", "communication of all clients", lambda curve: curve.until(BITS), bit_unit, BITS)
TRAINING = Cost(
    "samples", "samples trained on by all clients", lambda curve: curve.until(SAMPLES), sample_unit, SAMPLES
)
COSTS = (ROUNDS, COMMUNICATION, TRAINING)
