from typing import Any

from torch.optim import SGD

from pfl_lightning.methods.method import Method


class Local(Method):
    """No communication: every client trains its own model in the rounds that it takes part in. A baseline.

    Rule of a round:

        w_i = SGD for epochs on f_i, from w_i
        keep w_i

    There are no options for fine-tuning and for the server, since the method has neither.

    Args:
        kwargs: See ``Method``.
    """

    keeps = "all"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            head=None,
            eval_epochs=0,
            batch_norm="local",
            server_optimizer=SGD,
            aggregator=None,
            **kwargs,
        )
