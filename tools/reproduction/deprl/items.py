"""DePRL's tables and figures: the data sets that each one shows, and what is claimed about it."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from reproduction.claims import Claim
from reproduction.deprl.runs import DATA, SMALL, DataName
from reproduction.deprl.tables import table1_claims
from reproduction.runs import Place, Scale

ItemName = Literal["table1"]


class Item(NamedTuple):
    """A table or figure.

    Attributes:
        check: Runs a data set, and checks the claims about it.
        data: The data sets that the paper shows.
    """

    check: Callable[[Place], list[Claim]]
    data: Sequence[DataName] = DATA


ITEMS: dict[ItemName, Item] = {
    "table1": Item(table1_claims),
}


def data_of(name: ItemName, scale: Scale) -> tuple[str, ...]:
    """The data sets of a table or figure: those of the paper, or those of which we have small runs."""
    return tuple(ITEMS[name].data if scale == "full" else SMALL)


def item_claims(name: ItemName, place: Place) -> list[Claim]:
    """Run a table or figure on one data set, and check its claims."""
    place.folder.mkdir(parents=True, exist_ok=True)
    return ITEMS[name].check(place)
