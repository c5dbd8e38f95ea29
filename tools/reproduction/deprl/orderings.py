"""What is claimed about accuracies: which ones are better, and whether they rise.

All comparisons are of runs with the same seeds. A is above B if its mean over the seeds is larger. A is not below B if
the mean of A - B is at least minus one sample standard deviation of A - B over the seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from reproduction.claims import Claim, Floats, better, deviation, listed, trend
from reproduction.deprl.runs import ALPHAS, GOSSIP, GRAPHS, Graph, MethodName

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
UP_TO = "up to a standard deviation of the difference"


def not_below(first: Floats, second: Floats) -> bool:
    """Whether accuracies are as good as others with the same seeds, up to a standard deviation of the difference."""
    difference = first - second
    return bool(difference.mean() >= -deviation(difference))


def best_first(found: Found) -> Iterator[Claim]:
    """On each graph and for each concentration, DePRL is above DisPFL, and this above D-PSGD."""
    for alpha in ALPHAS:
        for graph in GRAPHS:
            values = [found[method, graph, alpha] for method in GOSSIP[::-1]]
            yield trend(f"alpha {alpha}, {graph}: {', '.join(NAMES[method] for method in GOSSIP[::-1])} (%)", values)


def deprl_is_best(found: Found) -> Iterator[Claim]:
    """In each row of a table, DePRL is above all other methods."""
    for alpha, graph in dict.fromkeys((alpha, graph) for _, graph, alpha in found):
        row = {method: values for (method, *where), values in found.items() if where == [graph, alpha]}
        yield best_claim(f"alpha {alpha}, {graph}", row)


def best_claim(where: str, row: Mapping[MethodName, Floats]) -> Claim:
    """DePRL is above the best of some other methods."""
    others = {method: values for method, values in row.items() if method != "deprl"}
    rival = max(others, key=lambda method: others[method].mean())
    text = f"{where}: DePRL, {NAMES[rival]} (the best other; %)"
    return better(text, row["deprl"], others[rival], "DePRL is better")


def denser_is_better(found: Found) -> Iterator[Claim]:
    """For each method and concentration, the complete graph is not below the random one, nor this below the ring."""
    for method in GOSSIP:
        for alpha in ALPHAS:
            values = [found[method, graph, alpha] for graph in GRAPHS]
            text = f"{NAMES[method]}, alpha {alpha}: {', '.join(GRAPHS)} (%)"
            yield Claim(text, listed(values), f"does not fall, {UP_TO}", does_not_fall(values))


def by_concentration(found: Found) -> Iterator[Claim]:
    """More even clients are worse for personal models, and better for D-PSGD's."""
    for method in GOSSIP:
        for graph in GRAPHS:
            values = [found[method, graph, alpha] for alpha in ALPHAS]
            text = f"{NAMES[method]}, {graph}: alpha {', '.join(map(str, ALPHAS))} (%)"
            yield trend(text, values, "rises" if method == "d-psgd" else "falls")


def does_not_fall(values: Sequence[Floats]) -> bool:
    """Whether none of some accuracies is below the one before."""
    return all(not_below(after, before) for before, after in pairwise(values))
