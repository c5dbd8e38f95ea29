"""FedMac's tables and figures: the pairs that each one shows, and what is claimed about it."""

from reproduction.fedmac.accuracy import table_claims
from reproduction.fedmac.dense import fig2_claims, fig4_claims, stability_claims
from reproduction.fedmac.recovery import recovery_claims
from reproduction.fedmac.runs import SEEDS, fit_options
from reproduction.fedmac.search import search_claims, searched_claims
from reproduction.fedmac.shares import fig5_claims
from reproduction.fedmac.sparse import fig3_claims, table4_claims
from reproduction.runs import Item, Paper

SEARCHED = ("mnist_mlr", "mnist_dnn", "fashion_mnist_mlr", "fashion_mnist_dnn")
PAPER = Paper(
    {
        "table1": Item(table_claims, ("mnist_dnn", "fashion_mnist_dnn", "synthetic_dnn", "cifar100_vgg")),
        "table2": Item(table_claims, ("mnist_mlr", "fashion_mnist_mlr", "synthetic_mlr")),
        "table3": Item(table_claims, ("cinic10_wrn",)),
        "table4": Item(table4_claims, ("mnist_dnn",)),
        "fig1": Item(recovery_claims),
        "fig2": Item(fig2_claims, ("mnist_dnn",)),
        "fig3": Item(fig3_claims, ("mnist_dnn",)),
        "fig4": Item(fig4_claims, ("mnist_dnn",)),
        "fig5": Item(fig5_claims, ("cinic10_wrn",)),
        "stability": Item(stability_claims, ("synthetic_mlr",)),
        "search": Item(search_claims, SEARCHED),
        "searched": Item(searched_claims, SEARCHED),
    },
    SEEDS,
    fit_options,
)
