from typing import Any

from torch import Tensor

from pfl_lightning.bounds import ClosedUnitInterval, PositiveFloat
from pfl_lightning.methods.families.message_passing import MessagePassing
from pfl_lightning.server import cosine_attention


class HeurFedAMP(MessagePassing):
    """FedAMP with attention by the cosines between models, which suits deep networks better than distances.

    Rule of a round; see ``MessagePassing`` for what is not said here:

        w_i = SGD for epochs on f_i + proximity / 2 |w_i - u_i|^2, from u_i
        xi_ii = self_weight
        xi_ij = (1 - self_weight) exp(sigma cos(w_i, w_j))
                / sum over h other than i of exp(sigma cos(w_i, w_h))
        u_i = sum_j xi_ij w_j

    cos is that of all parameters in a row. The larger ``sigma`` is, the more the most similar clients count; with a
    small one all others count equally. Models that began alike have cosines near 1: after 20 rounds on ``Digits``, 10
    hardly tells them apart. With ``self_weight`` 1 and ``proximity`` 0 it is ``Local``. A client that is alone receives
    its own model.

    Paper: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021, arXiv:2007.03797.

    Differs: in the paper xi_ii depends on how many clients have the same distribution as client i, which is unknown in
    general; ``self_weight`` is one constant for all. For the rest see ``MessagePassing``.

    Args:
        self_weight: Weight of a client's own model in its mix, in [0, 1].
        sigma: Sharpness of the attention, positive and finite.
        kwargs: Options of the bases.
    """

    def __init__(self, self_weight: ClosedUnitInterval = 0.5, sigma: PositiveFloat = 10.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.self_weight = self_weight
        self.sigma = sigma

    def attention(self, products: Tensor) -> Tensor:
        """Softmax of the cosines with the other clients' models, beside the constant weight of one's own."""
        return cosine_attention(products, self.self_weight, self.sigma)
