from typing import Any

from torch import Tensor

from pfl_lightning.bounds import PositiveFloat
from pfl_lightning.errors import PflError
from pfl_lightning.methods.families.message_passing import MessagePassing
from pfl_lightning.server import distance_attention
from pfl_lightning.tree import Tree


class FedAMP(MessagePassing):
    """Every client starts from a mix of all clients' models, in which near models count more than distant ones.

    Rule of a round; see ``MessagePassing`` for what is not said here:

        w_i = SGD for epochs on f_i + proximity / 2 |w_i - u_i|^2, from u_i
        xi_ij = attention_lr / sigma exp(-|w_i - w_j|^2 / sigma), for j other than i
        xi_ii = 1 - sum over j other than i of xi_ij
        u_i = sum_j xi_ij w_j

    The distance is that of all parameters in a row, and ``attention_lr`` is the paper's alpha_k.

    Paper: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021, arXiv:2007.03797,
    Algorithm 1, with the attention-inducing function 1 - exp(-x / sigma).

    Differs: alpha_k falls over the paper's rounds; here it is constant. For the rest see ``MessagePassing``.

    Args:
        sigma: Squared distance at which attention has fallen to 1/e, positive and finite.
        attention_lr: Rate of the attention, at most ``sigma / (clients - 1)``: then no weight can be negative.
        kwargs: Options of the bases.
    """

    def __init__(self, sigma: PositiveFloat = 10.0, attention_lr: PositiveFloat = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sigma = sigma
        self.attention_lr = attention_lr

    def initial_state(self, tensors: Tree, num_clients: int, seed: int) -> Tree:
        """The server's model, for every client.

        Raises:
            PflError: If weights could be negative: the rate is too large for so many clients.
        """
        clients = self.num_clients  # others are new ones, which receive no mix
        if clients > 1 and self.attention_lr > (most := self.sigma / (clients - 1)):
            raise PflError(
                f"model.attention_lr: {self.attention_lr} is not possible with sigma {self.sigma} and {clients} "
                f"clients, whose own weights could be negative; allowed: up to sigma / (clients - 1), {most}"
            )
        return super().initial_state(tensors, num_clients, seed)

    def attention(self, products: Tensor) -> Tensor:
        """Weights that fall with the distance to the other clients' models."""
        return distance_attention(products, self.sigma, self.attention_lr)
