from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat, PositiveInt
from pfl_lightning.client import Examples, Proximity
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params


class Ditto(Averaging):
    """FedAvg, plus a personal model per client that is regularized towards the received global model.

    Rule of a round:

        w_i = SGD for epochs on f_i, from w
        v_i = SGD for personal_epochs on f_i + proximity / 2 |v_i - w|^2, from v_i
        keep v_i
        w   = w - server_lr * (w - sum_i weight_i * w_i)

    w in the second line is the received model. ``proximity`` is the paper's lambda; with 0 the personal models are
    those of ``Local``. Clients are evaluated with v_i (``personal``) and with w (``global``). Clients that are new to a
    finished run train their heads on the mean body of all v_i, as in DePRL's Table 8 (arXiv:2312.10815), where Ditto is
    below FedAvg: with the body of w it would be equal to it.

    Paper: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, arXiv:2012.04221,
    Algorithm 1.

    Args:
        proximity: Weight of the proximal term that pulls the personal model towards the received one.
        personal_epochs: Epochs on the personal model per round.
        kwargs: Options of the bases.
    """

    personal = True

    def __init__(self, proximity: NonNegativeFloat = 1.0, personal_epochs: PositiveInt = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.proximity = proximity
        self.personal_epochs = personal_epochs

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the shared model, then the personal one with a proximal term around the received model."""
        trained, losses = super().local_update(cohort, received, key)
        phase = self.phase("all", self.personal_epochs, penalty=Proximity(self.proximity, "anchor"))
        start = received.under("personal").beside("anchor", received.select(self.parts["all"]))
        personal, _ = self.engine.train(cohort, start, phase, (*key, "personal"))
        return trained.beside("personal", personal.select(self.parts["all"])), losses
