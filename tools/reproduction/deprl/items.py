"""DePRL's tables and figures: the data sets that each one shows, and what is claimed about it."""

from collections.abc import Callable

from reproduction.claims import Claim
from reproduction.deprl.ablations import fig8_claims, fig9_claims, new_samples_claims
from reproduction.deprl.consensus import fig10_claims
from reproduction.deprl.figures import fig2_claims, fig3_claims
from reproduction.deprl.runs import DATA, SEEDS, SMALL, fit_options
from reproduction.deprl.speedup import table9_claims
from reproduction.deprl.tables import lenet_claims, table1_claims, table2_claims, table7_claims, table8_claims
from reproduction.runs import SCALES, Item, Paper, Place

TABLES = {"table1": table1_claims, "table2": table2_claims, "table7": table7_claims, "table8": table8_claims}
USUAL: dict[str, Callable[[Place], list[Claim]]] = {
    "fig2": fig2_claims,
    "fig8": fig8_claims,
    "fig9": fig9_claims,
    "fig10": fig10_claims,
    "fig11": fig10_claims,
    "new_samples": new_samples_claims,
}
SPEEDUP = Item(table9_claims, ("cifar100", "harbox"), ("fashion_mnist",))
PAPER = Paper(
    {
        **{name: Item(check, DATA, tuple(SMALL)) for name, check in USUAL.items()},
        **{name: Item(check, DATA, tuple(SMALL), ("fashion_mnist",), SCALES) for name, check in TABLES.items()},
        "table1_lenet": Item(lenet_claims, two_cores=("fashion_mnist",), scales=("two_cores",)),
        "fig3": Item(fig3_claims, ("cifar100",), tuple(SMALL)),
        "fig4": SPEEDUP,
        "table9": SPEEDUP,
    },
    SEEDS,
    fit_options,
)
