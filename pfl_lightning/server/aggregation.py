"""Aggregation of uploads: weights of the clients in the server's mean."""

from typing import Literal

import torch
from torch import Tensor

Weighting = Literal["samples", "uniform"]


def client_weights(counts: Tensor, weighting: Weighting) -> Tensor:
    """Weight of each upload in the server's mean.

    ``samples`` is FedAvg's (McMahan et al. 2017, arXiv:1602.05629), ``uniform`` that of SRPFL's Algorithm 1
    (arXiv:2206.02078).

    Args:
        counts: Training samples of each participant, ``[cohort]``.
        weighting: ``samples``: proportional to the counts; ``uniform``: equal.

    Returns:
        Float64 weights that sum to 1, ``[cohort]``.

    Examples:
        >>> client_weights(torch.tensor([1, 3]), "samples").tolist()
        [0.25, 0.75]
    """
    weights = counts.double() if weighting == "samples" else torch.ones(len(counts), dtype=torch.float64)
    return weights / weights.sum()
