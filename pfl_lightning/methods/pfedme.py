from typing import Any

from pfl_lightning.bounds import NonNegativeFloat, PositiveFloat
from pfl_lightning.client import Proximity
from pfl_lightning.methods.families.moving_copy import COPY, MovingCopy


class PFedMe(MovingCopy):
    """pFedMe: personal models near the global one, whose gradient is that of their Moreau envelope.

    Rule of a round:

        theta_i = w_i = w
        repeat epochs times, for each batch (for R steps: epochs=R, epoch_steps=1):
            repeat inner_steps times:
                theta_i = theta_i - lr * (gradient f_i(theta_i) + proximity * (theta_i - w_i))
            w_i = w_i - copy_lr * proximity * (w_i - theta_i)
        w = w - server_lr * (w - sum_i weight_i * w_i)

    ``proximity`` is the paper's lambda, ``inner_steps`` its K, ``copy_lr`` its eta, and the learning rate of
    ``server_optimizer`` its beta. Clients are evaluated with theta_i after such local training from w (``personal``),
    and with w (``global``). ``weight_decay`` is 0 by default.

    Paper: Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv:2006.08848,
    Algorithm 1.

    Differs: the authors' code evaluates w_i instead of theta_i, and adds 0.001 theta_i to the gradient. The paper's
    server takes the plain mean (``weighting: uniform``), the code and we weigh by samples.

    Args:
        proximity: Weight of the proximal term that pulls the personal model towards the client's copy.
        copy_lr: Learning rate of the client's copy of the global model.
        kwargs: Options of the bases.
    """

    display_name = "pFedMe"

    def __init__(self, proximity: NonNegativeFloat = 15.0, copy_lr: PositiveFloat = 0.005, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tie = Proximity(proximity, COPY)
        self.copy_lr = copy_lr
