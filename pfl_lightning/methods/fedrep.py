from typing import Any

from torch import Tensor

from pfl_lightning.bounds import PositiveFloat, PositiveInt
from pfl_lightning.client import Examples
from pfl_lightning.methods.method import Method
from pfl_lightning.models import Part
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params


class FedRep(Method):
    """Shared body (representation), personal heads.

    Rule of a round:

        repeat epochs times:
            head_i = SGD for head_epochs on f_i(body_i, .), from head_i  # body frozen
            body_i = SGD for 1 epoch on f_i(., head_i), from body_i      # head frozen
        keep head_i
        body   = body - server_lr * (body - sum_i weight_i * body_i)

    FedRep-SRPFL is the same with the ``StageDoubling`` callback. ``momentum`` is 0.5 by default.

    Paper: Collins et al., Exploiting Shared Representations, ICML 2021, arXiv:2102.07078, Algorithm 1.

    Differs: the authors' code takes all epochs on the head before those on the body; with several of these we
    alternate, as SRPFL's code does. For evaluation that code fine-tunes from the mean of all heads; we start from the
    client's own head, because a server can only know the mean if clients upload their heads.

    Args:
        head_epochs: Epochs on the head before each epoch on the body.
        head_lr: Learning rate of the head, also before an evaluation. Default: ``lr``.
        kwargs: See ``Method``.
    """

    doubled_name = "FedRep-SRPFL"

    keeps: Part = "head"
    usual_momentum = 0.5

    def __init__(self, head_epochs: PositiveInt = 10, head_lr: PositiveFloat | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.head_epochs = head_epochs
        self.head_lr = head_lr

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Alternate between the head and the body."""
        head = self.phase("head", self.head_epochs, self.head_lr)
        body = self.phase("body", epochs=1)
        params = received
        for repetition in range(self.local.epochs):
            params, _ = self.engine.train(cohort, params, head, (*key, "head", repetition))
            params, losses = self.engine.train(cohort, params, body, (*key, "body", repetition))
        return params, losses
