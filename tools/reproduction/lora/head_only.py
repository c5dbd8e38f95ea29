"""What adapters are measured against."""

from pfl_lightning.data import Round
from pfl_lightning.federation.accounting import Traffic
from pfl_lightning.methods import FedAvg
from pfl_lightning.tree import movable, select


class HeadOnly(FedAvg):
    """FedAvg of a head, on a body that stays as it is, and that clients have already."""

    trains = "head"

    def count_traffic(self, batch: Round, up: Traffic, down: Traffic) -> None:
        """Participants receive the head."""
        down.add(select(movable(self.network), self.parts["head"]), len(batch.participants))
