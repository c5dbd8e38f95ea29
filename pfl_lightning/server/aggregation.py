"""Aggregation of uploads: weights of the clients in the server's mean."""

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor

from pfl_lightning.tree import Tree, wide

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


def rebase_stale_uploads(trained: Tree, began: Tree, newest: Tree, shares: Tensor, changes: Collection[str]) -> Tree:
    """Uploads of clients that began with older models, as parts of a mean that the newest model x steps to.

    FedAsync's rule (Xie et al. 2019, arXiv:1903.03934) is ``x + s_i * (trained_i - x)``, and FedBuff's (Nguyen et al.
    2022, arXiv:2106.06639) ``x + s_i * (trained_i - began_i)``.

    Args:
        trained: What clients have trained, ``[cohort, ...]``; integers come back as floats.
        began: What they began with, ``[cohort, ...]``.
        newest: The newest model, ``[...]``.
        shares: How much each upload counts, ``[cohort]``.
        changes: Names of the tensors of which the change counts, FedBuff's rule.
    """
    rebased = {}
    for name, rows in trained.items():
        start = began[name] if name in changes else newest[name]
        moved = (rows - start).to(rows if rows.is_floating_point() else shares)
        rebased[name] = moved.mul_(wide(shares, moved)).add_(newest[name])  # in place: new memory is what takes time
    return rebased
