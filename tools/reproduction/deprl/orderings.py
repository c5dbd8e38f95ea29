"""What is claimed about accuracies: which one is better, and whether they rise.

All comparisons are of runs with the same seed. ``A above B`` is a positive mean over the seeds of A - B; ``A not below
B`` allows the mean to be negative by as much as one sample standard deviation of A - B over the seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from pfl_lightning.report.client_table import Floats
from reproduction.claims import Claim, spread
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


def above(first: Floats, second: Floats) -> bool:
    """Whether accuracies are better than others with the same seeds, in the mean."""
    return bool((first - second).mean() > 0)


def not_below(first: Floats, second: Floats) -> bool:
    """Whether accuracies are as good as others with the same seeds, up to a standard deviation of the difference."""
    difference = first - second
    allowed = difference.std(ddof=1) if len(difference) > 1 else 0.0
    return bool(difference.mean() >= -allowed)


def best_first(found: Found, methods: Sequence[MethodName] = GOSSIP[::-1]) -> Iterator[Claim]:
    """On each graph, for each concentration, every method is better than the next."""
    for alpha in ALPHAS:
        for graph in GRAPHS:
            values = [found[method, graph, alpha] for method in methods]
            yield Claim(
                f"alpha {alpha}, {graph}: {', '.join(NAMES[method] for method in methods)} (%)",
                shown(values),
                "falls",
                all(above(better, worse) for better, worse in pairwise(values)),
            )


def denser_is_better(found: Found) -> Iterator[Claim]:
    """For each method and concentration, the complete graph is not below the random one, nor this below the ring."""
    for method in GOSSIP:
        for alpha in ALPHAS:
            values = [found[method, graph, alpha] for graph in GRAPHS]
            yield Claim(
                f"{NAMES[method]}, alpha {alpha}: {', '.join(GRAPHS)} (%)",
                shown(values),
                "none below the one before, up to a standard deviation of the difference",
                all(not_below(denser, sparser) for sparser, denser in pairwise(values)),
            )


def by_concentration(found: Found) -> Iterator[Claim]:
    """More even clients are worse for personal models, and better for D-PSGD's."""
    for method in GOSSIP:
        for graph in GRAPHS:
            values = [found[method, graph, alpha] for alpha in ALPHAS]
            rises = method == "d-psgd"
            yield Claim(
                f"{NAMES[method]}, {graph}: alpha {', '.join(map(str, ALPHAS))} (%)",
                shown(values),
                "rises" if rises else "falls",
                all(above(after, before) if rises else above(before, after) for before, after in pairwise(values)),
            )


def shown(values: Sequence[Floats]) -> str:
    """Accuracies in a row, as means over the seeds with their standard deviations."""
    return ", ".join(map(spread, values))
