"""DePRL's Figures 2 and 3: accuracy against rounds, and how alike clients are."""

from itertools import chain, product

from reproduction.claims import Claim
from reproduction.deprl.runs import ALPHAS, GOSSIP, GRAPHS, curves, folder, sweep
from reproduction.runs import Place, compare


def fig2_claims(place: Place) -> list[Claim]:
    """Figure 2: the runs of Table 1 against rounds, in a folder for each concentration; makes no claims."""
    trained = curves(place, [sweep(place, method) for method in GOSSIP])
    for alpha in ALPHAS:
        shown = (trained[folder(method, graph, alpha)].runs for method, graph in product(GOSSIP, GRAPHS))
        compare(place, chain.from_iterable(shown), f"fig2_alpha={alpha}")
    return []
