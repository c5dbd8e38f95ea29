"""Summaries of one number per client. Pure functions of ``values`` and ``weights``, both ``[clients]``."""

from math import log

import torch
from torch import Tensor

TOLERANCE = 1e-12  # by float error, a share such as 0.3 can miss a cumulative weight that it equals


def weighted_quantile(values: Tensor, weights: Tensor, share: float) -> Tensor:
    """The smallest value whose lower tail holds at least this share of the weight.

    Formula: min { x_k : sum_{j: x_j <= x_k} w_j >= share * sum_j w_j }; see docs/evidence/derivations.md, Quantile and
    superquantile. Delta-FL chooses clients by it (arXiv:2002.11223, Algorithm 2).

    Args:
        values: One number per client, ``[clients]``.
        weights: Not negative, not all zero, ``[clients]``.
        share: In [0, 1].

    Returns:
        One of the values, ``[]``; nan without clients.

    Examples:
        >>> weighted_quantile(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1, 2, 3, 4]), 0.5)
        tensor(3.)
    """
    if not len(values):
        return values.new_tensor(torch.nan)
    ordered, order = values.sort()
    mass = weights[order].double().cumsum(0)
    place = torch.searchsorted(mass, mass[-1:] * (share - TOLERANCE))
    return ordered[place.clamp(max=len(values) - 1)].squeeze(0)


def superquantile(values: Tensor, weights: Tensor, tail: float) -> Tensor:
    """Mean of the largest values that hold this share of the weight; also known as CVaR.

    Formula: max { sum_k pi_k x_k : 0 <= pi_k <= w_k / (tail * sum_j w_j), sum_k pi_k = 1 }; see
    docs/evidence/derivations.md, Quantile and superquantile.

    Paper: Rockafellar and Uryasev, "Optimization of Conditional Value-at-Risk", Journal of Risk 2000; Delta-FL,
    arXiv:2002.11223.

    Args:
        values: One number per client, ``[clients]``.
        weights: Not negative, not all zero, ``[clients]``.
        tail: Share of the weight in the tail, in (0, 1]; 1 gives the weighted mean.

    Returns:
        A number between the weighted mean and the maximum, ``[]``; nan without clients.

    Examples:
        >>> superquantile(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1, 1, 1, 1]), 0.5)
        tensor(3.5000)
    """
    if not len(values):
        return values.new_tensor(torch.nan)
    ordered, order = values.sort(descending=True)
    mass = weights[order].double() / weights.double().sum()
    before = mass.cumsum(0) - mass
    inside = torch.minimum(mass, (tail - before).clamp(min=0))
    return ((ordered * inside).sum() / inside.sum()).to(values.dtype)


def client_summary(values: Tensor, weights: Tensor, higher_is_better: bool = True) -> dict[str, Tensor]:
    """Mean and spread of a score over the clients.

    Args:
        values: Score of each client, ``[clients]``.
        weights: Number of samples behind each score, ``[clients]``.
        higher_is_better: Whether the worst score is the smallest.

    Returns:
        ``mean``, ``weighted_mean``, ``std`` (of the population of clients) and ``worst``, each ``[]``; nan without
        clients.

    Examples:
        >>> summary = client_summary(torch.tensor([0.5, 1.0]), torch.tensor([1, 3]))
        >>> {name: value.item() for name, value in summary.items()}
        {'mean': 0.75, 'weighted_mean': 0.875, 'std': 0.25, 'worst': 0.5}
    """
    if not len(values):
        return dict.fromkeys(("mean", "weighted_mean", "std", "worst"), values.new_tensor(torch.nan))
    return {
        "mean": values.mean(),
        "weighted_mean": (values * weights).sum() / weights.sum(),
        "std": values.std(correction=0),
        "worst": values.min() if higher_is_better else values.max(),
    }


def fairness_summary(values: Tensor) -> dict[str, Tensor]:
    """How equal a score is over the clients, by indices that others print.

    Formulas, over the n clients with shares ``q_k = x_k / sum_j x_j``:

        gini    = sum_jk |x_j - x_k| / (2 n^2 mean x)        0 if all are equal
        jain    = (sum_k x_k)^2 / (n sum_k x_k^2)            1 if all are equal, 1 / n if one has all
        entropy = -sum_k q_k log q_k / log n                 1 if all are equal, 0 if one has all

    Paper: Jain, Chiu, Hawe, A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
    Computer Systems, DEC Research Report TR-301, 1984.

    Args:
        values: One number per client, not negative, ``[clients]``.

    Returns:
        ``gini``, ``jain`` and ``entropy``, ``[]`` each; nan without clients, if one is negative, or if all are 0.

    Examples:
        >>> {name: round(value.item(), 4) for name, value in fairness_summary(torch.tensor([1.0, 3.0])).items()}
        {'gini': 0.25, 'jain': 0.8, 'entropy': 0.8113}
    """
    x = values.double()
    clients = len(x)
    if not clients or x.min() < 0 or not x.sum() > 0:
        return dict.fromkeys(("gini", "jain", "entropy"), values.new_tensor(torch.nan))
    ranks = torch.arange(1, clients + 1, device=x.device)
    shares = x / x.sum()
    entropy = torch.special.entr(shares).sum() / log(clients) if clients > 1 else x.new_tensor(1.0)
    return {
        "gini": ((2 * ranks - clients - 1) * shares.sort().values).sum() / clients,
        "jain": 1 / (clients * (shares**2).sum()),
        "entropy": entropy,
    }


def client_percentiles(values: Tensor, weights: Tensor, percentiles: tuple[int, ...]) -> dict[str, Tensor]:
    """Percentiles of a score over the clients: plain (interpolated), and weighted by samples.

    Args:
        values: Score of each client, ``[clients]``.
        weights: Number of samples behind each score, ``[clients]``.
        percentiles: Percentiles to compute, in [0, 100].

    Returns:
        ``p5``, ``weighted_p5`` and so on, each ``[]``; nan without clients.

    Examples:
        >>> client_percentiles(torch.tensor([0.0, 1.0]), torch.tensor([1, 3]), (50,))
        {'p50': tensor(0.5000), 'weighted_p50': tensor(1.)}
    """
    summary = {}
    for percentile in percentiles:
        plain = values.quantile(percentile / 100) if len(values) else values.new_tensor(torch.nan)
        summary[f"p{percentile}"] = plain
        summary[f"weighted_p{percentile}"] = weighted_quantile(values, weights, percentile / 100)
    return summary
