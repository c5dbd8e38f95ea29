"""How uploads become one model: weights on the client axis."""

from typing import Literal

import torch
from torch import Tensor

Weighting = Literal["samples", "uniform"]


def client_weights(counts: Tensor, weighting: Weighting) -> Tensor:
    """Weight of each upload in the server's mean (SRPFL, section 1).

    Args:
        counts: Training samples of each participant, ``[cohort]``.
        weighting: ``samples``: proportional to the counts; ``uniform``: equal.

    Returns:
        Float64 weights that sum to 1, ``[cohort]``.
    """
    weights = counts.double() if weighting == "samples" else torch.ones(len(counts), dtype=torch.float64)
    return weights / weights.sum()
