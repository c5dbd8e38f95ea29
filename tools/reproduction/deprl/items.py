"""DePRL's tables and figures: the data sets that each one shows, and what is claimed about it."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from reproduction.claims import Claim
from reproduction.deprl.ablations import fig8_claims, fig9_claims
from reproduction.deprl.consensus import fig10_claims
from reproduction.deprl.figures import fig2_claims, fig3_claims
from reproduction.deprl.runs import DATA, DataName
from reproduction.deprl.speedup import table9_claims
from reproduction.deprl.tables import table1_claims, table2_claims, table7_claims, table8_claims
from reproduction.runs import Place, Scale

ItemName = Literal[
    "table1", "table2", "table7", "table8", "table9", "fig2", "fig3", "fig4", "fig8", "fig9", "fig10", "fig11"
]


class Item(NamedTuple):
    """A table or figure.

    Attributes:
        check: Runs a data set, and checks the claims about it.
        full: The data sets at full scale.
        small: Those at small scale.
    """

    check: Callable[[Place], list[Claim]]
    full: Sequence[DataName] = DATA
    small: Sequence[DataName] = ("fashion_mnist", "cifar10")


SPEEDUP = Item(table9_claims, full=("cifar100", "harbox"), small=("fashion_mnist",))
CONSENSUS = Item(fig10_claims)
ITEMS: dict[ItemName, Item] = {
    "table1": Item(table1_claims),
    "table2": Item(table2_claims),
    "table7": Item(table7_claims),
    "table8": Item(table8_claims),
    "table9": SPEEDUP,
    "fig2": Item(fig2_claims),
    "fig3": Item(fig3_claims, full=("cifar100",)),
    "fig4": SPEEDUP,
    "fig8": Item(fig8_claims),
    "fig9": Item(fig9_claims),
    "fig10": CONSENSUS,
    "fig11": CONSENSUS,
}


def data_of(name: ItemName, scale: Scale) -> Sequence[DataName]:
    """The data sets of a table or figure at a scale."""
    return ITEMS[name].full if scale == "full" else ITEMS[name].small


def item_claims(name: ItemName, place: Place) -> list[Claim]:
    """Run a table or figure on one data set, and check its claims."""
    place.folder.mkdir(parents=True, exist_ok=True)
    return ITEMS[name].check(place)
