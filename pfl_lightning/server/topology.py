"""Who exchanges models with whom when there is no server: graphs of the clients."""

from abc import ABC, abstractmethod
from io import BytesIO
from math import inf, isqrt, log
from pathlib import Path
from typing import TYPE_CHECKING

from pfl_lightning.bounds import ClosedUnitInterval, PositiveInt
from pfl_lightning.errors import PflError
from pfl_lightning.paths import expand_home
from pfl_lightning.seeding import seed_of

if TYPE_CHECKING:
    import networkx as nx

DRAWS = 1000  # attempts to draw a connected random graph
# clients without a neighbour on average; their number is nearly Poisson, so it is 0 with probability e^-15
HOPELESS = 15


class Topology(ABC):
    """A connected, undirected graph with one node per client.

    Attributes:
        redraw_every: Rounds after which a new graph is drawn; None for never.
    """

    redraw_every: int | None = None
    _drawn: "tuple[tuple[int, int, int], nx.Graph] | None" = None

    def graph(self, num_clients: int, seed: int, round_index: int = 0) -> "nx.Graph":
        """The graph in a round, the same object until the next draw; its nodes are the clients' ids.

        Args:
            num_clients: Number of clients.
            seed: Seed of random graphs; on the command line it follows ``seed_everything``.
            round_index: Rounds completed before this one.

        Raises:
            PflError: If there is no such graph for this many clients.
        """
        key = (num_clients, seed, round_index // self.redraw_every if self.redraw_every else 0)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = key, self.draw(num_clients, seed_of(seed, "topology", key[-1]))
        return self._drawn[1]

    @abstractmethod
    def draw(self, num_clients: int, seed: int) -> "nx.Graph":
        """Draw a connected graph with the nodes 0, 1, ..."""


class Ring(Topology):
    """Every client has two neighbours."""

    def draw(self, num_clients: int, seed: int) -> "nx.Graph":
        """The ring; up to three clients it is complete."""
        import networkx as nx

        return nx.cycle_graph(num_clients) if num_clients > 2 else nx.complete_graph(num_clients)


class Complete(Topology):
    """Every client is a neighbour of every other one, so that mixing is the mean over all."""

    def draw(self, num_clients: int, seed: int) -> "nx.Graph":
        """The complete graph."""
        import networkx as nx

        return nx.complete_graph(num_clients)


class Star(Topology):
    """Client 0 is the only neighbour of all others."""

    def draw(self, num_clients: int, seed: int) -> "nx.Graph":
        """The star."""
        import networkx as nx

        return nx.star_graph(num_clients - 1)


class Torus(Topology):
    """A grid, as near to a square as possible, whose opposite sides are joined; most clients have four neighbours."""

    def draw(self, num_clients: int, seed: int) -> "nx.Graph":
        """The torus.

        Raises:
            PflError: If the number of clients is a prime.
        """
        import networkx as nx

        rows = max(divisor for divisor in range(1, isqrt(num_clients) + 1) if num_clients % divisor == 0)
        if rows == 1 < num_clients:
            raise PflError(
                f"model.topology: Torus is not possible with {num_clients} clients, a prime number; allowed: others"
            )
        grid = nx.grid_2d_graph(rows, num_clients // rows, periodic=True)
        return nx.convert_node_labels_to_integers(grid, ordering="sorted")


class Exponential(Topology):
    """Clients are neighbours of those 1, 2, 4, 8, ... places away on a ring."""

    def draw(self, num_clients: int, seed: int) -> "nx.Graph":
        """The graph."""
        import networkx as nx

        return nx.circulant_graph(num_clients, [1 << power for power in range((num_clients - 1).bit_length())])


class ErdosRenyi(Topology):
    """Every two clients are neighbours with the same probability; redrawn until the graph is connected.

    Args:
        edge_probability: The probability; the default is that of DePRL's code (arXiv:2312.10815).
        redraw_every: Rounds after which a new graph is drawn. Default: never.
    """

    def __init__(self, edge_probability: ClosedUnitInterval = 0.25, redraw_every: PositiveInt | None = None) -> None:
        self.edge_probability = edge_probability
        self.redraw_every = redraw_every

    def draw(self, num_clients: int, seed: int) -> "nx.Graph":
        """Draw a connected graph.

        Raises:
            PflError: If none is found because the probability is too small.
        """
        import networkx as nx

        lonely = num_clients * (1 - self.edge_probability) ** (num_clients - 1)
        for attempt in range(DRAWS if lonely < HOPELESS else 0):
            graph = nx.gnp_random_graph(num_clients, self.edge_probability, seed_of(seed, attempt))
            if nx.is_connected(graph):
                return graph
        usual = log(num_clients) / num_clients  # above it, large graphs are connected
        raise PflError(
            f"model.topology.edge_probability: {self.edge_probability} is not possible with {num_clients} clients: "
            f"such graphs are not connected; allowed: about {usual:.1g} or more"
        )


class GraphFile(Topology):
    """A graph from a file: GraphML (``.graphml``), or otherwise a list of edges.

    Every line of a list has the ids of two clients, and optionally the weight of the link between them. In GraphML it
    is the edge's attribute ``weight``. Weights are used with ``mixing: given``; of a repeated link the last one counts.

    Args:
        path: The file; its nodes are numbered from 0.
    """

    def __init__(self, path: Path) -> None:
        self.path = expand_home(path, "model.topology.path")

    def draw(self, num_clients: int, seed: int) -> "nx.Graph":
        """Read the graph.

        Raises:
            PflError: If the file cannot be read, or has no connected graph of this many clients.
        """
        import networkx as nx

        graph = self._read()
        if graph.is_directed():
            raise self._error("a directed graph", "an undirected one")
        if set(graph) != set(range(num_clients)):
            ids = f"{len(graph)} nodes from {min(graph)} to {max(graph)}" if graph else "no nodes"
            raise self._error(ids, f"one node per client, numbered from 0 to {num_clients - 1}")
        if loops := list(nx.selfloop_edges(graph)):
            raise self._error(f"a link of client {loops[0][0]} to itself", "links between two clients")
        graph = nx.Graph(graph)
        for link, weight in nx.get_edge_attributes(graph, "weight").items():
            if not (isinstance(weight, int | float) and 0 < weight < inf):
                raise self._error(f"the weight {weight} of the link {link}", "positive numbers")
        if not nx.is_connected(graph):
            raise self._error("a graph that is not connected", "one with a path between every two clients")
        return graph

    def _read(self) -> "nx.Graph":
        import networkx as nx

        if self.path.exists() and not self.path.is_file() and not self.path.is_dir():
            raise self._error("a pipe or a device", "a file that can be read")
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise self._error(f"{error.strerror}", "a file that can be read") from error
        try:
            if self.path.suffix == ".graphml":
                return nx.read_graphml(BytesIO(content), node_type=int)
            return nx.parse_edgelist(content.decode().splitlines(), nodetype=int, data=[("weight", float)])
        except (ValueError, TypeError, LookupError, SyntaxError, nx.NetworkXError) as error:
            raise self._error(f"its text ({error})", "GraphML (.graphml), or two ids on each line") from error

    def _error(self, what: str, allowed: str) -> PflError:
        return PflError(f"model.topology.path: '{self.path}' is not possible: {what}; allowed: {allowed}")
