from typing import Any

from jsonargparse.typing import NonNegativeInt

from pfl_lightning.methods.base import Method
from pfl_lightning.models import Network


class Local(Method):
    """No communication: every client trains a model of its own whenever it takes part; everyone's sanity baseline.

    Rule of a round::

        w_i = SGD for epochs on f_i, from w_i
        keep w_i

    Args:
        network: The network; ``num_classes`` and ``input_shape`` come from the data set.
        eval_epochs: Further epochs on a copy before a client is judged; 0, since there is nothing to adapt to.
        kwargs: See ``Method``.
    """

    keeps = "all"

    def __init__(self, network: Network, eval_epochs: NonNegativeInt = 0, **kwargs: Any) -> None:
        super().__init__(network, eval_epochs=eval_epochs, **kwargs)
