"""DePRL's Tables 1, 2, 7 and 8: accuracies of the clients, and of new ones, beside the paper's."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from pfl_lightning.report import Curve
from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim, Floats, beside, counted, spread
from reproduction.deprl.newcomers import CLIENTS, new_accuracy
from reproduction.deprl.orderings import (
    NAMES,
    Cell,
    Found,
    best_first,
    by_concentration,
    denser_is_better,
    deprl_is_best,
    rows,
)
from reproduction.deprl.paper import TABLE1, TABLE2, TABLE7, TABLE8, Numbers
from reproduction.deprl.runs import ALPHAS, GOSSIP, GRAPHS, SERVER, MethodName, curves, final, folder, sweep
from reproduction.runs import CONFIGS, Place, publish

Paper = Mapping[Cell, float]
GRAPH_CELLS: Sequence[Cell] = [(method, graph, alpha) for alpha, graph, method in product(ALPHAS, GRAPHS, GOSSIP)]
SERVER_CELLS: Sequence[Cell] = [(method, "Ring", alpha) for alpha, method in product(ALPHAS, SERVER)]
RING_CELLS: Sequence[Cell] = [cell for cell in GRAPH_CELLS if cell[1] == "Ring"]
LENET = (f"--config={CONFIGS}/models/lenet5.yaml", "--model.network.channels=[6,16]")
LENET_CELLS: Sequence[Cell] = [("d-psgd", graph, min(ALPHAS)) for graph in ("Ring", "Complete")]
LAST = "mean over the clients of their test accuracy after the last round (%)"


def table1_claims(place: Place) -> list[Claim]:
    """Table 1: D-PSGD, DisPFL and DePRL on three graphs, for three concentrations."""
    paper = numbers(place, TABLE1, GRAPH_CELLS)
    found = measured(place, GRAPH_CELLS, final)
    groups = {
        "DePRL above DisPFL, and this above D-PSGD": beside(best_first, found, paper),
        "complete graph above the random one, and this above the ring": beside(denser_is_better, found, paper),
        "falls with alpha, but rises for D-PSGD": beside(by_concentration, found, paper),
    }
    return publish_verdicts(place, "table1", accuracy_table(place, LAST, found, paper), groups)


def lenet_claims(place: Place) -> list[Claim]:
    """Table 1 with a convolutional network: whether D-PSGD's order of the graphs is another one then."""
    place = place._replace(folder=place.folder / "lenet", options=[*place.options, *LENET])
    paper = numbers(place, TABLE1, GRAPH_CELLS)
    found = measured(place, LENET_CELLS, final)
    groups = {"complete graph above the ring": beside(denser_is_better, found, paper)}
    return publish_verdicts(place, "table1", accuracy_table(place, LAST, found, paper), groups)


def table7_claims(place: Place) -> list[Claim]:
    """Table 7: the methods of Table 1 on the ring beside methods with a server, which sends as much in a round."""
    paper = beside_servers(place, TABLE1, TABLE7)
    found = measured(place, [*RING_CELLS, *SERVER_CELLS], final)
    servers = {cell: found[cell] for cell in SERVER_CELLS if cell in found}
    falls = {"falls with alpha, but rises for FedAvg": beside(by_concentration, servers, paper)}
    return publish_verdicts(place, "table7", accuracy_table(place, LAST, found, paper), best(found, paper) | falls)


def table2_claims(place: Place) -> list[Claim]:
    """Table 2: new clients with the bodies of Table 1."""
    paper = numbers(place, TABLE2, GRAPH_CELLS)
    found = measured(place, GRAPH_CELLS, newcomers(place))
    return publish_verdicts(place, "table2", accuracy_table(place, new(place), found, paper), best(found, paper))


def table8_claims(place: Place) -> list[Claim]:
    """Table 8: new clients with the bodies of Table 7."""
    paper = beside_servers(place, TABLE2, TABLE8)
    found = measured(place, [*RING_CELLS, *SERVER_CELLS], newcomers(place))
    return publish_verdicts(place, "table8", accuracy_table(place, new(place), found, paper), best(found, paper))


def best(found: Found, paper: Paper) -> dict[str, list[Claim]]:
    """That DePRL is best in each row of a table."""
    return {"DePRL above all others": beside(deprl_is_best, found, paper)}


def measured(place: Place, cells: Sequence[Cell], measure: Callable[[Curve], Floats]) -> Found:
    """Train the runs of some cells, at two cores of the smallest alpha alone, and measure them, ``[seeds]`` each."""
    cells = [cell for cell in cells if place.scale != "two_cores" or cell[2] == min(ALPHAS)]
    methods, graphs, alphas = (tuple(dict.fromkeys(each)) for each in zip(*cells, strict=True))
    trained = curves(place, [sweep(place, method, graphs, alphas) for method in methods])
    return {cell: measure(trained[folder(*cell)]) for cell in cells}


def newcomers(place: Place) -> Callable[[Curve], Floats]:
    """Measures what clients that are new to some runs get."""
    return lambda curve: new_accuracy(curve, CLIENTS[place.scale])


def new(place: Place) -> str:
    """What is shown of new clients."""
    return f"mean over {CLIENTS[place.scale]} new clients of their test accuracy (%)"


def numbers(place: Place, table: Numbers, cells: Sequence[Cell]) -> Paper:
    """The paper's numbers of a data set by cell."""
    return dict(zip(cells, (number for alpha in ALPHAS for number in table[place.pair][alpha]), strict=True))


def beside_servers(place: Place, graphs: Numbers, servers: Numbers) -> Paper:
    """The paper's numbers on all graphs, and of the methods with a server."""
    return {**numbers(place, graphs, GRAPH_CELLS), **numbers(place, servers, SERVER_CELLS)}


def accuracy_table(place: Place, what: str, found: Found, paper: Paper) -> str:
    """A row for each concentration and graph, a column for each method, with the paper's numbers in brackets."""
    methods: list[MethodName] = list(dict.fromkeys(method for method, _, _ in found))
    cells = [
        [alpha, graph, *(f"{spread(found[m, graph, alpha])} ({paper[m, graph, alpha]:.2f})" for m in methods)]
        for alpha, graph in rows(found)
    ]
    title = f"{place.pair}, {place.scale} scale, {len(place.seeds)} seeds: {what}, the paper's in brackets"
    return markdown(title, ["alpha", "graph", *(NAMES[method] for method in methods)], cells)


def publish_verdicts(place: Place, name: str, table: str, groups: Mapping[str, Sequence[Claim]]) -> list[Claim]:
    """Publish a table with the verdicts on the claims of each kind; returns all of them."""
    lines = (f"- {text}: {counted(claim.word for claim in claims)}" for text, claims in groups.items() if claims)
    publish(place, name, "\n".join([table, *lines, ""]))
    return [claim for claims in groups.values() for claim in claims]
