from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, PositiveFloat
from pfl_lightning.client import Cosine, Examples
from pfl_lightning.data import Round
from pfl_lightning.methods.families.averaging import Weighted
from pfl_lightning.methods.families.whole_models import WholeModels
from pfl_lightning.seeding import Key
from pfl_lightning.server import cosines, nearest_on_simplex
from pfl_lightning.tree import Params, Tree, prefixed, repeated, select, zeros_like

FIRST = "initial"  # prefix of the model with which all clients begin
START = "start"  # prefix of the mix with which a client starts a round
UPDATE = "update"  # prefix of by how much a client's model has moved from the first one


class PFedGraph(Weighted, WholeModels):
    """Every client starts from a mix of the participants' models, in which those count more that have moved alike.

    Rule of a round; w_0 is the model with which all clients begin, u_i the mix of client i, p_j the weight of client j
    in FedAvg's mean, and i and j are participants:

        w_i  = SGD for epochs on f_i - strength * cos(w_i, u_i), from u_i
               (without the cosine in the first round)
        c_ij = cos(w_i - w_0, w_j - w_0), 0 if one of them has not moved
        a_i  = argmin of alpha |a - p|^2 - sum_j c_ij a_j, over a_j >= 0 with sum 1
        u_i  = sum_j a_ij w_j

    Cosines are those of all parameters in a row. The a_ij are the graph: a_i is the point of the simplex nearest to
    p + c_i / (2 alpha). Clients are evaluated with w_i (``personal``). With ``strength`` 0 a large ``alpha`` makes it
    FedAvg, and a small one ``Local``. The server's step takes time quadratic in the number of participants. The rest
    is as in ``WholeModels``.

    Paper: Ye, Ni, Wu, Chen, Wang, Personalized Federated Learning with Inferred Collaboration Graphs, ICML 2023 (PMLR
    202), Algorithm 1.

    Differs: the authors' code adds the cosine to the loss, which pushes models away from their mixes, and takes a c_ij
    above 0.9 for 1. One of its two programs has the cosine with the mean of w_j / |w_j|; the other one, as here, with
    the mix, so that a client receives one model.

    Args:
        alpha: How near the weights of a mix stay to FedAvg's.
        strength: Weight of the cosine with the received mix, the paper's lambda.
        kwargs: Options of the bases.
    """

    display_name = "pFedGraph"
    eval_models = ("personal",)

    def __init__(self, alpha: PositiveFloat = 0.8, strength: NonNegativeFloat = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alpha = alpha
        self.strength = strength

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """A client's model, its mix (``start.*``), and by how much the model has moved: zeros (``update.*``)."""
        state = super().initial_state(tensors, num_clients, seed)
        updates = zeros_like(select(tensors, self.engine.trainable))
        return {**state, **prefixed(START, state), **repeated(prefixed(UPDATE, updates), num_clients)}

    def server_state(self, tensors: Tree) -> Tree:
        """w_0 (``initial.*``)."""
        return prefixed(FIRST, select(tensors, self.engine.trainable))

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the received mix, turned towards it."""
        start = received.under(START)
        has_mixed = self.accounting.clock.rounds > 0
        phase = self.phase("all", penalty=Cosine(self.strength, "anchor") if self.strength and has_mixed else None)
        trained, losses = self.engine.train(cohort, start.beside("anchor", start), phase, (*key, "all"))
        first = received.under(f"server.{FIRST}").shared
        updates = {name: trained.own[name] - tensor for name, tensor in first.items()}
        kept = trained.select(self.parts["all"]).beside(START, start)
        return kept.with_own(prefixed(UPDATE, updates)), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Infer the graph, and mix a model for every participant; the network becomes the mean of all models."""
        ids, order = batch.examples.host_ids.sort()
        updates = [name for name in self.clients.names if name.startswith(f"{UPDATE}.")]
        graph = self.graph(self.clients.inner_products(updates, ids).cpu(), batch.weights[order])
        self.clients.mix(graph, self.parts["all"], into=START, ids=ids)
        super().server_update(mean, batch)

    def graph(self, products: Tensor, weights: Tensor) -> Tensor:
        """The a_ij, float64 ``[receivers, senders]``.

        Args:
            products: Inner products of the updates, float64 ``[clients, clients]``.
            weights: p, float64 ``[clients]``.
        """
        self.check_finite(products)
        return nearest_on_simplex(weights + cosines(products) / (2 * self.alpha))

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """Each client's own model."""
        return received
