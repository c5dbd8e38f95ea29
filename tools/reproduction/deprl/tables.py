"""DePRL's tables: accuracies of the clients beside the paper's."""

from collections.abc import Mapping, Sequence
from itertools import product

from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim, spread
from reproduction.deprl.orderings import NAMES, Cell, Found, best_first, by_concentration, denser_is_better
from reproduction.deprl.paper import TABLE1
from reproduction.deprl.runs import ALPHAS, GOSSIP, GRAPHS, MethodName, curves, final, folder, sweep
from reproduction.runs import Place, publish

CELLS: Sequence[Cell] = [(method, graph, alpha) for alpha, graph, method in product(ALPHAS, GRAPHS, GOSSIP)]
LAST = "mean over the clients of their test accuracy after the last round (%)"


def table1_claims(place: Place) -> list[Claim]:
    """Table 1: D-PSGD, DisPFL and DePRL on three graphs, for three concentrations."""
    found = gossip_accuracies(place)
    paper = dict(zip(CELLS, (number for alpha in ALPHAS for number in TABLE1[place.pair][alpha]), strict=True))
    groups = {
        "DePRL above DisPFL, and DisPFL above D-PSGD": list(best_first(found)),
        "complete graph not below the random one, and this not below the ring": list(denser_is_better(found)),
        "falls with alpha, but rises for D-PSGD": list(by_concentration(found)),
    }
    publish(place, "table1", f"{accuracy_table(place, LAST, found, paper)}\n{count(groups)}\n")
    return [claim for claims in groups.values() for claim in claims]


def gossip_accuracies(place: Place) -> Found:
    """Train what Table 1 shows; the accuracies after the last round."""
    trained = curves(place, [sweep(place, method) for method in GOSSIP])
    return {cell: final(trained[folder(*cell)]) for cell in CELLS}


def accuracy_table(place: Place, what: str, found: Found, paper: Mapping[Cell, float]) -> str:
    """A row for each concentration and graph, a column for each method, with the paper's numbers in brackets."""
    methods: list[MethodName] = list(dict.fromkeys(method for method, _, _ in found))
    lines = dict.fromkeys((alpha, graph) for _, graph, alpha in found)
    rows = [
        [alpha, graph, *(_beside(found, paper, (method, graph, alpha)) for method in methods)] for alpha, graph in lines
    ]
    title = f"{place.pair}, {place.scale} scale, {len(place.seeds)} seeds: {what}, the paper's in brackets"
    return markdown(title, ["alpha", "graph", *(NAMES[method] for method in methods)], rows)


def count(groups: Mapping[str, Sequence[Claim]]) -> str:
    """How many claims of each kind hold."""
    lines = (f"- {name}: {sum(claim.passed for claim in claims)} of {len(claims)}" for name, claims in groups.items())
    return "\n".join(lines)


def _beside(found: Found, paper: Mapping[Cell, float], cell: Cell) -> str:
    return f"{spread(found[cell])} ({paper[cell]:.2f})"
