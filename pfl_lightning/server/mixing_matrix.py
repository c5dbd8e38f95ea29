"""Mixing without a server: the links between clients, and the weights by which each averages the models it receives."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_lightning.errors import PflError

if TYPE_CHECKING:
    import networkx as nx

Mixing = Literal["metropolis", "uniform", "given"]
Floats = NDArray[np.float64]

TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """The links between some clients, and the matrix by which they mix their models.

    Attributes:
        clients: Their ids, in the order of the matrices.
        adjacency: Weight of the link between every two clients, symmetric; 1 if the graph has no weights, 0 without a
            link, ``[clients, clients]``.
        mixing: How the links determine the weights: ``metropolis`` gives ``1 / (1 + max(d_i, d_j))``, where d is a
            client's number of neighbours, ``uniform`` gives ``1 / (1 + d_i)``, and ``given`` the weights of the links;
            a client's own weight is the rest of 1.
    """

    clients: list[int]
    adjacency: Floats
    mixing: Mixing

    @classmethod
    def between(cls, graph: "nx.Graph", clients: list[int], mixing: Mixing) -> "MixingMatrix":
        """The links of a graph among some of its clients.

        Raises:
            PflError: If the mixing is not possible with this graph.
        """
        import networkx as nx

        if mixing == "given" and len(nx.get_edge_attributes(graph, "weight")) < graph.number_of_edges():
            raise PflError(
                "model.mixing: given is not possible with links that have no weight; allowed: metropolis, uniform"
            )
        weight = "weight" if mixing == "given" else None
        links = cls(clients, nx.to_numpy_array(graph, clients, weight=weight), mixing)
        own_weights = links.matrix.diagonal()
        if (own_weights < -TOLERANCE).any():
            client = int(own_weights.argmin())
            total = links.adjacency[client].sum()
            raise PflError(
                f"model.topology: weights of {total:g} at client {clients[client]} are not possible with model.mixing: "
                "given; allowed: up to 1 at each client, so that the matrix is doubly stochastic"
            )
        return links

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """Number of each client's neighbours, ``[clients]``."""
        return np.asarray((self.adjacency > 0).sum(1))

    def links(self, senders: ArrayLike) -> int:
        """Number of links from some of the clients to their neighbours."""
        return int(self.degrees[np.isin(self.clients, senders)].sum())

    @cached_property
    def matrix(self) -> Floats:
        """Weights of the mix, ``[receivers, senders]``; rows sum to 1, and so do columns, except for ``uniform``.

        Paper: Xiong et al., DePRL: Achieving Linear Convergence Speedup in Personalized Decentralized Learning with
        Shared Representations, AAAI 2024, arXiv:2312.10815. The Metropolis weights satisfy its assumption of a doubly
        stochastic matrix on every graph; its code has the uniform ones, which do so only if all degrees are equal.

        Examples:
            >>> import networkx as nx
            >>> path = nx.Graph([(0, 1), (1, 2)])
            >>> MixingMatrix.between(path, [0, 1, 2], "metropolis").matrix.round(2)
            array([[0.67, 0.33, 0.  ],
                   [0.33, 0.33, 0.33],
                   [0.  , 0.33, 0.67]])
            >>> MixingMatrix.between(path, [0, 1, 2], "uniform").matrix.round(2)
            array([[0.5 , 0.5 , 0.  ],
                   [0.33, 0.33, 0.33],
                   [0.  , 0.5 , 0.5 ]])
        """
        weights = self.adjacency
        if self.mixing == "metropolis":
            weights = (weights > 0) / (1 + np.maximum(self.degrees, self.degrees[:, None]))
        elif self.mixing == "uniform":
            weights = (weights > 0) / (1 + self.degrees[:, None])
        return weights + np.diag(1 - weights.sum(1))

    @cached_property
    def spectral_gap(self) -> float:
        """1 minus the second largest absolute eigenvalue of the matrix: near 0 for slow mixing, 1 if a round is enough.

        Examples:
            >>> import networkx as nx
            >>> round(MixingMatrix.between(nx.cycle_graph(8), list(range(8)), "metropolis").spectral_gap, 10)
            0.1952621459
        """
        scale = np.sqrt(1.0 + self.degrees)  # makes uniform weights symmetric with the same eigenvalues
        matrix = self.matrix * scale[:, None] / scale if self.mixing == "uniform" else self.matrix
        sizes = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
        return float(1 - sizes[-2]) if len(sizes) > 1 else 1.0
