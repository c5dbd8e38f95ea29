from typing import Any

from torch.optim import SGD

from pfl_lightning.methods.base import Method


class Local(Method):
    """No communication: every client trains a model of its own whenever it takes part; everyone's sanity baseline.

    Rule of a round::

        w_i = SGD for epochs on f_i, from w_i
        keep w_i

    Nothing is refitted, and there is no server: their options are not offered.

    Args:
        kwargs: See ``Method``.
    """

    keeps = "all"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(eval_epochs=0, eval_momentum=0.0, batch_norm="local", server_optimizer=SGD, **kwargs)
