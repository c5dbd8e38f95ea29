"""The scores of clients, such as accuracy and loss, and how they are shown."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Values = TypeVar("Values", "Tensor", NDArray[np.float64])


@dataclass(frozen=True)
class ScoreKind:
    """A kind of score.

    Attributes:
        name: Name in logged values, such as ``test/global/accuracy/mean``.
        higher_is_better: Whether a high score is good.
        scale: Factor applied for display.
        unit: Unit for display.
        digits: Decimal places for display.
    """

    name: str
    higher_is_better: bool
    scale: float
    unit: str
    digits: int

    @property
    def error_name(self) -> str:
        """Name of the values that ``errors`` returns."""
        return "error" if self.higher_is_better else self.name

    @property
    def label(self) -> str:
        """The score with its unit, for titles and axes."""
        return self.name + self.unit

    @property
    def error_label(self) -> str:
        """The same for the values that ``errors`` returns."""
        return self.error_name + self.unit

    def errors(self, scores: Values) -> Values:
        """Convert scores so that lower is better: 1 - score, which of an accuracy is the share of wrong predictions."""
        return 1 - scores if self.higher_is_better else scores

    def show(self, score: float) -> str:
        """Format a score in its unit."""
        return f"{self.scale * score:.{self.digits}f}"


ACCURACY = ScoreKind("accuracy", higher_is_better=True, scale=100, unit=" (%)", digits=1)
LOSS = ScoreKind("loss", higher_is_better=False, scale=1, unit="", digits=4)
APART = ("attackers", "backdoor")  # splits that show what an attack does
SPLITS = ("test", "val", "choice", "train", *APART)
HEADLINED = ("val", "test")  # train/loss is that of local training


def headline(split: str, score_kind: ScoreKind) -> str:
    """Name of the one logged value that all methods have: the mean score of the first model that they are evaluated by.

    Args:
        split: One of ``HEADLINED``.
        score_kind: What clients are evaluated by.

    Example:
        >>> headline("test", ACCURACY)
        'test/accuracy'
    """
    return f"{split}/{score_kind.name}"
