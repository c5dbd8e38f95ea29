from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods.method import Method
from pfl_lightning.tree import Tree


class WholeModels(Method):
    """What methods share whose clients keep whole models, all of which the server sees.

    The network is the mean of the clients' models, with which clients begin that are new to a finished run. Models
    are not pruned.
    """

    keeps = "all"
    prunes = False

    def server_update(self, mean: Tree, batch: Round) -> None:
        """Set the network to the mean of the clients' models."""
        super().server_update(self.clients.mean(self.parts["all"]), batch)

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Every participant receives a model, and sends its own unless that is dropped."""
        model = self.clients.first(self.parts["all"])  # all are of the same size
        up.add(model, len(batch.examples))
        down.add(model, len(batch.participants))
