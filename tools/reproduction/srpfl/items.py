"""SRPFL's figures, and the searches beside them."""

from functools import partial

from reproduction.runs import SCALES, Item, Paper, Scale
from reproduction.srpfl.figures import FIGURES, SEEDS, figure_claims
from reproduction.srpfl.hf_maml import compare_hf_maml
from reproduction.srpfl.linear_claims import linear_claims
from reproduction.srpfl.rates import search_rates


def scales_of(name: str) -> tuple[Scale, ...]:
    """The scales at which a figure has panels."""
    return tuple(scale for scale in SCALES if FIGURES[name].at(scale))


PAPER = Paper(
    {
        **{name: Item(partial(figure_claims, name), scales=scales_of(name)) for name in FIGURES},
        "linear": Item(linear_claims),
        "rates": Item(search_rates, scales=("small",)),
        "hf_maml": Item(compare_hf_maml, scales=("small",)),
    },
    SEEDS,
)
