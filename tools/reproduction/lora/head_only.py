"""What adapters are measured against."""

from pfl_lightning.methods import FedAvg
from pfl_lightning.models import Network


class HeadOnly(FedAvg):
    """FedAvg of a head on a frozen network."""

    def extend_network(self, network: Network) -> None:
        """Freeze the body."""
        _, head = network.cut(self.head)
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name in head)
