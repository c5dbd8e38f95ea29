from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples, Proximity
from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params


class FedProx(FineTuned, Averaging):
    """FedAvg with a proximal term that keeps clients near the received model.

    Rule of a round:

        w_i = SGD for epochs on f_i + proximity / 2 |w_i - w|^2, from w
        w   = w - server_lr * (w - sum_i weight_i * w_i)

    ``proximity`` is mu of the paper's eq. (2); 0 is FedAvg. The paper lets slow clients do less work; here all clients
    do the same, and stragglers are the business of ``data.speeds`` and ``StageDoubling``.

    Paper: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv:1812.06127, Algorithm 2.

    Differs: the paper samples clients in proportion to their data and takes the plain mean; here clients are sampled
    uniformly, and ``weighting`` sets their weights.

    Args:
        proximity: Weight of the proximal term.
        kwargs: Options of the bases.
    """

    def __init__(self, proximity: NonNegativeFloat = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.proximity = proximity

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the whole network with a proximal term around the received model."""
        phase = self.phase("all", penalty=Proximity(self.proximity, "anchor"))
        return self.engine.train(cohort, received.beside("anchor", received), phase, (*key, "all"))
