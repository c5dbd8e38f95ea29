"""What clients are judged by, and how it is shown."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Values = TypeVar("Values", Tensor, NDArray[np.float64])


@dataclass(frozen=True)
class Quantity:
    """A score of a client.

    Attributes:
        name: As in the names of logged values, such as ``test/global/accuracy/mean``.
        higher_is_better: Whether a high score is good.
        scale: What a score is multiplied by to be shown.
        unit: Of what is shown.
        digits: Decimal places of what is shown.
    """

    name: str
    higher_is_better: bool
    scale: float
    unit: str
    digits: int

    @property
    def error_name(self) -> str:
        """Name of what ``errors`` gives."""
        return "error" if self.higher_is_better else self.name

    def errors(self, scores: Values) -> Values:
        """The same scores, but the lower the better: an accuracy becomes the share of wrong predictions."""
        return 1 - scores if self.higher_is_better else scores

    def show(self, score: float) -> str:
        """A score in its unit."""
        return f"{self.scale * score:.{self.digits}f}"


ACCURACY = Quantity("accuracy", higher_is_better=True, scale=100, unit=" (%)", digits=1)
LOSS = Quantity("loss", higher_is_better=False, scale=1, unit="", digits=4)
QUANTITIES = {quantity.name: quantity for quantity in (ACCURACY, LOSS)}
