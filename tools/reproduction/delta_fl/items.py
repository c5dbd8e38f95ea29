"""Delta-FL's tables and figures: the runs that they need, and the claims about them."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from reproduction.claims import Claim
from reproduction.delta_fl.claims import (
    Check,
    as_fast,
    kept,
    period_matters_little,
    same_tails,
    served_and_trained_better,
)
from reproduction.delta_fl.devices import TABLE, device_claims
from reproduction.delta_fl.runs import PAIRS, SEEDS, TAILS, curves, fit_options
from reproduction.delta_fl.search import penalty_claims, search_claims
from reproduction.delta_fl.toy import toy_claims
from reproduction.runs import Item, Paper, Place, Sweep, compare

LINEAR = ("femnist_linear", "sent140_linear")
HALF = Sweep(("delta-fl",), {"model.conformity": (0.5,)})
RARER = Sweep(("delta-fl",), {"model.conformity": (0.5,), "model.quantile_every": (5, 10)})
FROM_SUMS = Sweep(("delta-fl",), {"model.conformity": (0.5,), "model.quantile": ("sums",)})
ALL = (Sweep(("fedavg",)), TAILS)
SWEEPS: Mapping[str, Sequence[Sweep]] = {
    "table2": ALL,
    "fig6": ALL,
    "fig16": (TAILS,),
    "fig17": (HALF, RARER),
    "algorithm3": (HALF, FROM_SUMS),
}


def figure_claims(name: str, check: Check, place: Place) -> list[Claim]:
    """Run and check a figure on a pair; ``pfl compare`` draws and tabulates the runs beside them.

    Args:
        name: The figure.
        check: The claims about its curves.
        place: The pair.
    """
    found = curves(place, SWEEPS[name])
    compare(place, chain.from_iterable(curve.runs for curve in found.values()), name)
    return check(found)


PAPER = Paper(
    {
        "table1": Item(device_claims, tuple(TABLE)),
        "table2": Item(partial(figure_claims, "table2", served_and_trained_better), PAIRS),
        "fig3": Item(toy_claims),
        "fig6": Item(partial(figure_claims, "fig6", as_fast), PAIRS),
        "fig16": Item(partial(figure_claims, "fig16", kept), PAIRS),
        "fig17": Item(partial(figure_claims, "fig17", period_matters_little), LINEAR),
        "algorithm3": Item(partial(figure_claims, "algorithm3", same_tails), ("femnist_linear",)),
        "search": Item(search_claims, PAIRS, seeds=(1,)),
        "penalties": Item(penalty_claims, LINEAR, seeds=(1,)),
    },
    SEEDS,
    fit_options,
)
