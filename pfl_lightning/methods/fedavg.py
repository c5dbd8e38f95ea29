from types import MappingProxyType

from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned


class FedAvg(FineTuned, Averaging):
    """Federated averaging: one global model; another ``server_optimizer`` makes it FedAvgM or FedAdam.

    Rule of a round:

        w_i = SGD for epochs on f_i, from w
        w   = w - server_lr * (w - sum_i weight_i * w_i)

    FedAvg-FT is the same run evaluated with its ``finetuned`` model: each client trains the head for ``eval_epochs`` on
    a copy of w. FLANP and FLANP-FT are the same with the ``StageDoubling`` callback.

    Paper: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
    arXiv:1602.05629, Algorithm 1.
    """

    doubled_name = "FLANP"
    suffixes = MappingProxyType({"finetuned": "-FT", "global": ""})

    @property
    def is_baseline(self) -> bool:
        """Others are compared with it, but not with methods that build on it."""
        return type(self) is FedAvg
