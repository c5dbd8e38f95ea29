"""What is claimed about accuracies: which ones are better, and whether they rise.

All comparisons are of runs with the same seeds. What is claimed of the paper's own numbers stands beside it.
"""

from collections.abc import Iterator, Mapping
from itertools import product

from reproduction.claims import Claim, Floats, first, trend
from reproduction.deprl.runs import GOSSIP, Graph, MethodName

Cell = tuple[MethodName, Graph, float]  # method, graph, concentration
Found = Mapping[Cell, Floats]  # accuracies in %, [seeds]

NAMES: Mapping[str, str] = {
    "d-psgd": "D-PSGD",
    "dispfl": "DisPFL",
    "deprl": "DePRL",
    "fedavg": "FedAvg",
    "fedrep": "FedRep",
    "ditto": "Ditto",
    "fedrod": "FedRoD",
}


def rows(found: Found) -> list[tuple[float, Graph]]:
    """The concentrations and graphs of some cells."""
    return list(dict.fromkeys((alpha, graph) for _, graph, alpha in found))


def best_first(found: Found) -> Iterator[Claim]:
    """On each graph and for each concentration, DePRL is above DisPFL, and this above D-PSGD."""
    best = GOSSIP[::-1]
    for alpha, graph in rows(found):
        values = [found[method, graph, alpha] for method in best]
        yield trend(f"alpha {alpha}, {graph}: {', '.join(NAMES[method] for method in best)} (%)", values)


def deprl_is_best(found: Found) -> Iterator[Claim]:
    """In each row of a table, DePRL is above all other methods."""
    for alpha, graph in rows(found):
        row = {method: values for (method, *where), values in found.items() if where == [graph, alpha]}
        yield best_claim(f"alpha {alpha}, {graph}", row)


def best_claim(where: str, row: Mapping[MethodName, Floats]) -> Claim:
    """DePRL is above all other methods."""
    return first(where, NAMES["deprl"], {NAMES[method]: values for method, values in row.items()})


def denser_is_better(found: Found) -> Iterator[Claim]:
    """For each method and concentration, the complete graph is above the random one, and this above the ring."""
    methods, graphs, alphas = (dict.fromkeys(each) for each in zip(*found, strict=True))
    for method, alpha in product(methods, alphas):
        values = [found[method, graph, alpha] for graph in graphs]
        yield trend(f"{NAMES[method]}, alpha {alpha}: {', '.join(graphs)} (%)", values, "rises")


def by_concentration(found: Found) -> Iterator[Claim]:
    """More even clients are worse for personal models, and better for D-PSGD's and FedAvg's."""
    methods, graphs, alphas = (dict.fromkeys(each) for each in zip(*found, strict=True))
    for method, graph in product(methods, graphs) if len(alphas) > 1 else ():
        values = [found[method, graph, alpha] for alpha in alphas]
        text = f"{NAMES[method]}, {graph}: alpha {', '.join(map(str, alphas))} (%)"
        yield trend(text, values, "rises" if method in ("d-psgd", "fedavg") else "falls")
