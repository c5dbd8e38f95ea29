from functools import partial
from typing import Any

from torch.optim import SGD

from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods.method import Method
from pfl_lightning.tree import Tree


class WholeModels(Method):
    """What methods share whose clients keep whole models, all of which the server sees.

    The network is the mean of the clients' models, with which clients begin that are new to a finished run. There are
    no options for fine-tuning, the server's optimizer and sums. Models are not pruned.

    Args:
        kwargs: See ``Method``.
    """

    keeps = "all"
    prunes = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(head=None, eval_epochs=0, server_optimizer=partial(SGD, lr=1.0), aggregator=None, **kwargs)

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Set the network to the mean of the clients' models."""
        super().server_update(self.clients.mean(self.parts["all"]), batch)

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Every participant receives a model, and sends its own unless that is dropped."""
        model = self.clients.first(self.parts["all"])  # all are of the same size
        up.add(model, len(batch.examples))
        down.add(model, len(batch.participants))
