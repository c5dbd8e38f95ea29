"""Weights of the clients with the largest losses. Pure functions of ``values`` and ``weights``, both ``[clients]``."""

import torch
from torch import Tensor

from pfl_lightning.metrics.functional import TOLERANCE


def smooth_quantile(values: Tensor, weights: Tensor, tail: float, smoothing: float) -> Tensor:
    """The threshold at which the smoothed weights of the tail hold this share of the weight.

    Formula: the smallest breakpoint or interpolated eta with ``sum_k w_k clip((x_k - eta) / smoothing, 0, 1) = tail``,
    for weights that sum to 1: the minimum over eta of the smoothed superquantile; see
    docs/evidence/derivations.md, Smoothed superquantile. Delta-FL's eta step (arXiv:2002.11223, Algorithm 1).

    Args:
        values: One number per client, ``[clients]``.
        weights: Not negative, not all zero, ``[clients]``.
        tail: Share of the weight in the tail, in (0, 1].
        smoothing: Width of the transition from weight 0 to the full weight, above 0, in units of the values.

    Returns:
        The threshold, ``[]``.

    Examples:
        >>> smooth_quantile(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4), tail=0.6, smoothing=0.5)
        tensor(1.8000)
    """
    points: Tensor = torch.cat([values, values - smoothing]).double().unique()  # ascending
    shares = ((values[:, None] - points) / smoothing).clamp(0, 1)  # [clients, points]
    held = (weights.double()[:, None] * shares).sum(0) / weights.double().sum()
    after = int((held <= tail + TOLERANCE).nonzero()[0])
    if after == 0 or held[after] >= tail - TOLERANCE:
        return points[after].to(values.dtype)
    before = after - 1
    part = (held[before] - tail) / (held[before] - held[after])
    threshold: Tensor = points[before] + part * (points[after] - points[before])
    return threshold.to(values.dtype)


def tail_weights(values: Tensor, weights: Tensor, tail: float, threshold: Tensor, smoothing: float = 0.0) -> Tensor:
    """Weights of the clients above a threshold; at the quantile they give the superquantile as a weighted mean.

    Formula: ``w_k clip((x_k - threshold) / smoothing, 0, 1)``. Without smoothing, clients above the threshold have
    their full weight, and clients at the threshold share the rest of the tail; see
    docs/evidence/derivations.md, Quantile and superquantile.

    Args:
        values: One number per client, ``[clients]``.
        weights: Not negative, not all zero, ``[clients]``.
        tail: Share of the weight in the tail, in (0, 1].
        threshold: The threshold, such as the quantile at 1 - tail, ``[]``.
        smoothing: Width of the transition from weight 0 to the full weight.

    Returns:
        Weights between 0 and ``weights``, in float64, ``[clients]``; not normalised.

    Examples:
        >>> tail_weights(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3), 0.5, torch.tensor(2.0)).tolist()
        [0.0, 0.5, 1.0]
    """
    weights = weights.double()
    if smoothing > 0:
        return weights * ((values - threshold) / smoothing).clamp(0, 1)
    above = weights * (values > threshold)
    border = weights * (values == threshold)
    rest = tail - above.sum() / weights.sum()
    share = (rest * weights.sum() / border.sum()).clamp(0, 1) if rest > TOLERANCE else 0.0
    return above + border * share
