from typing import Any

from pfl_lightning.methods.families.averaging import Averaging
from pfl_lightning.methods.families.fine_tuned import FineTuned
from pfl_lightning.models import Part


class FedPer(FineTuned, Averaging):
    """A shared body and personal heads that are trained together.

    Rule of a round; the model of client i is (body, head_i):

        (body_i, head_i) = SGD for epochs on f_i, from (body, head_i)
        body = body - server_lr * (body - sum_i weight_i * body_i)

    FedRep trains the two one after the other. With ``keeps: nothing`` it is FedAvg.

    Paper: Arivazhagan et al., Federated Learning with Personalization Layers, 2019, arXiv:1912.00818, Algorithms 1 and
    2.

    Args:
        keeps: What clients keep: ``head``, ``body``, a pattern of tensors' names such as ``fc2.*`` or ``*bias``, or a
            kind of layers such as ``GroupNorm``.
        kwargs: Options of the bases.
    """

    def __init__(self, keeps: Part = "head", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keeps = keeps
