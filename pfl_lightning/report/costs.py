"""What can be counted up to each evaluation, beside simulated time: for tables and figures."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pfl_lightning.report.compare_curves import Curve, Curves
from pfl_lightning.report.compare_runs import LINK_BITS
from pfl_lightning.report.run_files import Floats

BITS = {1e12: "Tbit", 1e9: "Gbit", 1e6: "Mbit", 1e3: "kbit", 1.0: "bit"}


class Cost(NamedTuple):
    """A count that grows over the rounds.

    Attributes:
        name: Name in files and columns.
        words: What is counted, in the title of a table.
        axis: What is counted, at the axis of a figure, with a place for the unit.
        units: Names of units by their size, the largest first.
        tag: The logged count, which older runs lack; empty for rounds.
        title: Name of its panel in a figure.
    """

    name: str
    words: str
    axis: str
    units: Mapping[float, str]
    tag: str = ""
    title: str = ""

    def of(self, curve: Curve) -> Floats:
        """The count of a curve, ``[seeds, evaluations]``."""
        return curve.until(self.tag) if self.tag else np.tile(curve.rounds.astype(float), (len(curve.runs), 1))

    def known(self, curves: Curves) -> bool:
        """Whether all curves have the count."""
        return not self.tag or all(self.tag in run.logged for curve in curves for run in curve.runs)

    def unit(self, largest: float) -> tuple[float, str]:
        """A unit for counts up to the largest: its size, and its name.

        Example:
            >>> COMMUNICATION.unit(697752960)
            (1000000.0, 'Mbit')
        """
        return next((unit for unit in self.units.items() if largest >= unit[0]), list(self.units.items())[-1])


ROUNDS = Cost("rounds", "communication rounds", "communication rounds", {1.0: "rounds"})
COMMUNICATION = Cost(
    "bits", "communication of all clients", "communication ({})", BITS, "bits/total", "all clients, as encoded"
)
# by the formula of FedMac's paper (Liu et al., arXiv:2107.05330, Figure 6)
LINK = Cost(
    "link_bits", "communication of a client", "communication ({})", BITS, LINK_BITS, "one client, 64 bits a value"
)
TRAINING = Cost(
    "samples",
    "samples trained on by all clients",
    "training, all clients and epochs ({})",
    {1e9: "billion samples", 1e6: "million samples", 1e3: "thousand samples", 1.0: "samples"},
    "samples/total",
)
