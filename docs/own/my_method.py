"""A method of one's own: FedRep whose bodies stay near the server's, and whose losses reward doubt."""

from typing import Any

from torch import Tensor

from pfl_lightning.bounds import NonNegativeFloat
from pfl_lightning.client import Examples, Proximity
from pfl_lightning.methods import FedAvg
from pfl_lightning.seeding import Key
from pfl_lightning.tree import Params


class NearRep(FedAvg):
    """Clients keep their heads; the body's steps are drawn back to the body that they received.

    Args:
        proximity: Strength of that.
        doubt: Weight of the sum of squared probabilities in the loss.
        kwargs: See ``FedAvg``.
    """

    keeps = "head"

    def __init__(self, proximity: NonNegativeFloat = 0.1, doubt: NonNegativeFloat = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.proximity, self.doubt = proximity, doubt

    def local_update(self, cohort: Examples, received: Params, key: Key) -> tuple[Params, Tensor]:
        """Train the head, then the body near the received one."""
        body = self.phase("body", penalty=Proximity(self.proximity, "anchor"))
        params, _ = self.engine.train(cohort, received, self.phase("head"), (*key, "head"))
        return self.engine.train(cohort, params.beside("anchor", received), body, (*key, "body"))

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The usual loss, and a little for being sure."""
        return super().sample_losses(outputs, targets) + self.doubt * outputs.softmax(-1).square().sum(-1)
