from typing import Any, ClassVar

import torch
from torch import Tensor

from pfl_lightning.data import FederatedDataModule, Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods.families.averaging import SharedStatistics
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.models import Part
from pfl_lightning.server import Mixing, MixingMatrix, Ring, Topology
from pfl_lightning.tree import Tree, select


class Gossip(FineTuned, SharedStatistics):
    """Learning without a server: clients mix their models with those of their neighbours in a graph.

    Rule of a round; P is a matrix with positive weights for neighbours and for oneself:

        w_i = local_update(w_i)                    # w_i: all that client i keeps
        w_i = sum_j P_ij w_j, for the part that a method ``mixes``

    All clients begin with the same model, and are evaluated after mixing. Those that do not take part in a round keep
    what they have: the others mix over the links among themselves, with weights that follow from these alone. So under
    stage doubling, or with a pool, a client that joins brings an old model. There is no server: the network is the mean
    of what the participants have mixed, and as initialised where they mix nothing. Models are not pruned.

    A client sends its part to each neighbour that takes part, and can begin its next round when it has heard of all of
    them, whatever others do (``Clock.advance_locally``).

    The errors of consensus, ``consensus/before`` and ``consensus/after`` mixing, are the mean over the participants of
    the squared distance of what they mix to its mean. ``consensus/spectral_gap`` is that of P: the smaller, the slower
    they agree.

    Args:
        topology: The graph. Default: ``Ring``.
        mixing: The weights: ``metropolis``, which are doubly stochastic and so keep the mean, ``uniform`` among a
            client and its neighbours, which do so only if all have equally many, or ``given`` in a ``GraphFile``.
        kwargs: Options of the bases.
    """

    keeps: Part = "all"
    weighting = "uniform"
    mixes: ClassVar[Part] = "all"
    prunes = False

    def __init__(self, topology: Topology | None = None, mixing: Mixing = "metropolis", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topology = topology or Ring()
        self.mixing = mixing
        self._latest: tuple[Any, MixingMatrix] | None = None
        self._consensus: dict[str, Tensor | float] = {}

    def build_for(self, data: FederatedDataModule, resumes: bool = False) -> None:
        """Build the method for a data set, and check the graph; see ``Method.build_for``."""
        super().build_for(data, resumes)
        graph = self.topology.graph(data.num_clients, data.seed)
        MixingMatrix.between(graph, [*range(data.num_clients)], self.mixing)

    @property
    def mixed(self) -> frozenset[str]:
        """Names of the tensors that are mixed."""
        part = self.parts[self.mixes]
        return part & self.engine.trainable if self.batch_norm == "local" else part

    def mixing_matrix(self, batch: Round, awaited: bool = False) -> MixingMatrix:
        """The weights among those whose models arrive in a round, or are awaited, by rising id."""
        graph = self.topology.graph(self.num_clients, batch.seed, batch.round_index)
        clients = (batch.awaited[0] if awaited else batch.examples.host_ids).sort().values.tolist()
        if self._latest is None or self._latest[0] is not graph or self._latest[1].clients != clients:
            self._latest = graph, MixingMatrix.between(graph, clients, self.mixing)
        return self._latest[1]

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Every participant sends what it mixes to its neighbours, also to those whose own models are dropped."""
        up.add(self.clients.first(self.mixed), self.mixing_matrix(batch, awaited=True).links(batch.examples.host_ids))

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Mix the participants' models; the network takes the mean of what they have mixed."""
        mixing = self.mixing_matrix(batch)
        ids: Tensor | None = batch.examples.host_ids.sort().values
        if len(batch.examples) == self.num_clients:
            ids = None  # all, whose rows are then not copied
        parameters = sorted(self.mixed & self.engine.trainable)
        before = self.clients.spread(parameters, ids)
        self.mix_clients(torch.from_numpy(mixing.matrix), ids)
        after = self.clients.spread(parameters, ids)
        super().server_update(select(self.mean_model(ids), self.mixed), batch)
        self._consensus = {"before": before, "after": after, "spectral_gap": mixing.spectral_gap}

    def mix_clients(self, matrix: Tensor, ids: Tensor | None) -> None:
        """Mix the participants' models in place.

        Args:
            matrix: Weights, float64 ``[receivers, senders]``; both axes are the participants.
            ids: The participants, rising, on the CPU, ``[participants]``; None for all clients.
        """
        self.clients.mix(matrix, self.mixed, ids=ids)

    def mean_model(self, ids: Tensor | None) -> Tree:
        """The mean of the participants' models, ``[...]``; ``ids`` as for ``mix_clients``."""
        return self.clients.mean(self.parts["all"], ids)

    def common_body(self) -> Tree:
        """The mean of all clients' bodies."""
        return select(self.mean_model(None), self.parts["body"])

    def advance_clock(self, batch: Round) -> None:
        """Advance the clock; a client waits for its neighbours alone, and for models that are dropped."""
        ids, times = batch.awaited
        mixing = self.mixing_matrix(batch, awaited=True)
        self.accounting.clock.advance_locally(
            mixing.clients, times[ids.argsort().numpy()], mixing.adjacency > 0, batch.communication_time
        )

    def log_round(self, batch: Round, loss: Tensor | None) -> None:
        """Log the errors of consensus, too, if models were mixed."""
        super().log_round(batch, loss)
        self.log_dict({f"consensus/{name}": value for name, value in self._consensus.items()})
        self._consensus = {}
