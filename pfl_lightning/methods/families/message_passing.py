from abc import abstractmethod
from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples, Proximity
from pfl_lightning.data import Round
from pfl_lightning.methods.families.whole_models import WholeModels
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params, Tree, movable, prefixed, select


class MessagePassing(WholeModels):
    """The server mixes a model for each client from the models of all, with more weight on those that are similar.

    Rule of a round; u_i is kept at the server, and u_i and w_i begin with the same model:

        w_i = SGD for epochs on f_i + proximity / 2 |w_i - u_i|^2, from u_i
        keep w_i
        u_i = sum_j attention_ij w_j, for all clients i

    Clients are evaluated with w_i (``personal``). BatchNorm statistics are mixed by the same weights, which depend on
    the parameters alone. ``weight_decay`` is 0 by default. The server's step takes time quadratic in the number of
    clients. The rest is as in ``WholeModels``.

    Paper: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021, arXiv:2007.03797.

    Differs: the proximal term has the weight lambda / (2 alpha_k) in the paper, where alpha_k falls over the rounds;
    ``proximity`` is a constant lambda / alpha_k. The paper takes the minimum of the local objective, we take steps from
    u_i. All its clients train in every round; here absent ones count with their last w_j, and get a new u_j too.

    Args:
        proximity: Weight of the proximal term.
        kwargs: Options of the bases.
    """

    usual_weight_decay = 0.0
    eval_models = ("personal",)

    def __init__(self, proximity: NonNegativeFloat = 1e-4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.proximity = proximity

    @abstractmethod
    def attention(self, products: Tensor) -> Tensor:
        """Weights of all clients' models in each one's mix, ``[receivers, senders]``.

        Args:
            products: Inner products of the clients' parameters, float64 ``[clients, clients]``.
        """

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """A client's model, and its mix at the server (``cloud.*``): both are the server's tensors."""
        state = super().initial_state(tensors, num_clients, seed)
        return {**state, **prefixed("cloud", state)}

    @property
    def written_by_server(self) -> tuple[str, ...]:
        """The mixes of all clients."""
        return ("cloud.",)

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the received mix, with a proximal term around it."""
        start = received.under("cloud")
        phase = self.phase("all", penalty=Proximity(self.proximity, "anchor"))
        trained, losses = self.engine.train(cohort, start.beside("anchor", start), phase, (*key, "all"))
        return trained.select(self.parts["all"]).beside("cloud", start), losses

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Mix a model for every client; the network becomes the mean of the clients' models."""
        products = self.clients.inner_products(select(movable(self.network), self.engine.trainable))
        self.clients.mix(self.attention(products), self.parts["all"], into="cloud")
        super().server_update(mean, batch)

    def eval_model(self, model: str, train: Examples, received: Params, key: Key) -> Params:
        """Each client's own model."""
        return received
