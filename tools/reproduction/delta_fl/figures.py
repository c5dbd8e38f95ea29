"""Delta-FL's Table 2 and Figures 16 and 17, and its Algorithm 3: the runs that they need, and the claims about them."""

from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple

from reproduction.claims import Claim
from reproduction.delta_fl.claims import Check, kept, period_matters_little, same_tails, served_and_trained_better
from reproduction.delta_fl.runs import PAIRS, PairName, curves
from reproduction.runs import Place, Sweep, compare

FigureName = Literal["table2", "fig16", "fig17", "algorithm3"]


class Figure(NamedTuple):
    """A table or figure of the paper.

    Attributes:
        sweeps: The runs of each pair.
        check: The claims about one pair.
        pairs: The pairs that the paper shows, or those where it matters.
    """

    sweeps: Sequence[Sweep]
    check: Check
    pairs: Sequence[PairName] = PAIRS


TAILS = Sweep(("delta-fl",), {"model.conformity": (0.8, 0.5, 0.1)})
HALF = Sweep(("delta-fl",), {"model.conformity": (0.5,)})
RARER = Sweep(("delta-fl",), {"model.conformity": (0.5,), "model.quantile_every": (5, 10)})
FROM_SUMS = Sweep(("delta-fl",), {"model.conformity": (0.5,), "model.quantile": ("sums",)})
FIGURES: dict[FigureName, Figure] = {
    "table2": Figure((Sweep(("fedavg",)), TAILS), served_and_trained_better),
    "fig16": Figure((TAILS,), kept),
    "fig17": Figure((HALF, RARER), period_matters_little, ("femnist_linear", "sent140_linear")),
    "algorithm3": Figure((HALF, FROM_SUMS), same_tails, ("femnist_linear",)),
}


def figure_claims(name: FigureName, places: Sequence[Place]) -> list[Claim]:
    """Run and check a figure on some pairs; ``pfl compare`` draws and tabulates the runs beside them.

    Args:
        name: The figure.
        places: The pairs.
    """
    figure = FIGURES[name]
    claims: list[Claim] = []
    for place in places:
        found = curves(place, figure.sweeps)
        compare(place, chain.from_iterable(curve.runs for curve in found.values()), name)
        claims += [claim._replace(claim=f"{place.pair}: {claim.claim}") for claim in figure.check(found)]
    return claims
