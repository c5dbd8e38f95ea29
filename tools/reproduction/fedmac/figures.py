"""FedMac's tables and figures: the pairs that each one shows, and what is claimed about it."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from reproduction.claims import Claim
from reproduction.fedmac.accuracy import table_claims
from reproduction.fedmac.dense import fig2_claims, fig4_claims, stability_claims
from reproduction.fedmac.runs import PairName
from reproduction.fedmac.search import search_claims
from reproduction.fedmac.shares import fig5_claims
from reproduction.fedmac.sparse import fig3_claims, table4_claims
from reproduction.runs import Place

ItemName = Literal["table1", "table2", "table3", "table4", "fig2", "fig3", "fig4", "fig5", "stability", "search"]


class Item(NamedTuple):
    """A table or figure.

    Attributes:
        pairs: The pairs of data and network that it shows.
        check: Runs a pair, and checks the claims about it.
    """

    pairs: Sequence[PairName]
    check: Callable[[Place], list[Claim]]


ITEMS: dict[ItemName, Item] = {
    "table1": Item(("mnist_dnn", "fashion_mnist_dnn", "synthetic_dnn", "cifar100_vgg"), table_claims),
    "table2": Item(("mnist_mlr", "fashion_mnist_mlr", "synthetic_mlr"), table_claims),
    "table3": Item(("cinic10_wrn",), table_claims),
    "table4": Item(("mnist_dnn",), table4_claims),
    "fig2": Item(("mnist_dnn",), fig2_claims),
    "fig3": Item(("mnist_dnn",), fig3_claims),
    "fig4": Item(("mnist_dnn",), fig4_claims),
    "fig5": Item(("cinic10_wrn",), fig5_claims),
    "stability": Item(("synthetic_mlr",), stability_claims),
    "search": Item(("mnist_mlr", "mnist_dnn", "fashion_mnist_mlr", "fashion_mnist_dnn"), search_claims),
}


def item_claims(name: ItemName, place: Place) -> list[Claim]:
    """Run a table or figure for one pair, and check its claims."""
    place.folder.mkdir(parents=True, exist_ok=True)
    return ITEMS[name].check(place)
