"""Where Delta-FL and FedAvg end for devices of Gaussian data, in closed form.

All devices are equally large, n of them: a test device of conformity theta mixes them by weights of at most
``1 / (n theta)`` that sum to 1, and its loss is the mean of their losses under these weights. FedAvg is the case of
theta = 1, with equal weights.

Paper: Laguel, Pillutla, Malick, Harchaoui, "Device Heterogeneity in Federated Learning: A Superquantile Approach",
2020, arXiv:2002.11223, Figure 3. Derivations: docs/evidence/derivations.md, Three Gaussians.
"""

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor


def worst_mixture(devices: int, conformity: float) -> Tensor:
    """Weights of the mixture with the largest loss, for devices that are sorted by falling loss.

    Args:
        devices: Number of devices, n.
        conformity: theta, in (0, 1].

    Returns:
        Weights that sum to 1, the largest possible ones first, float64 ``[devices]``.

    Examples:
        >>> worst_mixture(4, 0.4)
        tensor([0.6250, 0.3750, 0.0000, 0.0000], dtype=torch.float64)
    """
    most = 1 / (devices * conformity)
    left = 1 - most * torch.arange(devices, dtype=torch.float64)
    return left.clamp(0, most)


def superquantile_loss(losses: Tensor, conformity: float) -> Tensor:
    """The largest loss among the test devices of a conformity, F_theta.

    Args:
        losses: Losses of equally large devices, ``[..., devices]``.
        conformity: theta, in (0, 1]; 1 for the mean.

    Returns:
        A number between the mean and the maximum, ``[...]``.

    Examples:
        >>> float(superquantile_loss(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.5))  # mean of the larger half
        3.5
    """
    falling = losses.sort(descending=True).values
    return falling @ worst_mixture(losses.shape[-1], conformity).to(losses)


def gaussian_losses(points: Tensor, centres: Tensor) -> Tensor:
    """Mean of half the squared distance to a device's data, which are Gaussian with the identity as covariance.

    Formula: F_k(w) = E |w - x|^2 / 2 = (|w - mu_k|^2 + d) / 2, x ~ N(mu_k, I).

    Args:
        points: Models w, ``[..., dimension]``.
        centres: Means mu_k, ``[devices, dimension]``.

    Returns:
        Losses, ``[..., devices]``.

    Examples:
        >>> gaussian_losses(torch.tensor([3.0, 4.0]), torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
        tensor([13.5000,  1.0000])
    """
    squared = (points[..., None, :] - centres).square().sum(-1)
    return (squared + centres.shape[-1]) / 2


def superquantile_minimizer(centres: Tensor, conformity: float) -> Tensor:
    """The model with the smallest F_theta: that of Delta-FL, and with theta = 1 that of FedAvg.

    It is the best model of the test device that it serves worst::

        w = sum_k pi_k mu_k,    pi maximises sum_k pi_k |mu_k|^2 - |sum_k pi_k mu_k|^2

    over all test devices pi of the conformity, since the two are a saddle point of their loss. For three devices and
    theta = 2/3 it is the circumcentre of their triangle if this is acute, and else the midpoint of the longest side.

    Args:
        centres: Means of the devices' Gaussian data, ``[devices, dimension]``.
        conformity: theta, in (0, 1].

    Returns:
        The point, ``[dimension]``.

    Examples:
        >>> superquantile_minimizer(torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0]]), 2 / 3).round(decimals=5) + 0
        tensor([2., 0.], dtype=torch.float64)
    """
    means = centres.double().numpy()
    devices = len(means)
    squared = np.square(means).sum(1)
    found = minimize(
        lambda shares: np.square(shares @ means).sum() - shares @ squared,
        np.full(devices, 1 / devices),
        bounds=[(0, 1 / (devices * conformity))] * devices,
        constraints={"type": "eq", "fun": lambda shares: shares.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    return torch.from_numpy(found.x @ means)


def narrowed(mixtures: Tensor, conformity: float) -> Tensor:
    """Maps all mixtures of three devices onto those with a conformity, linearly: a uniform draw stays uniform.

    Args:
        mixtures: Weights that sum to 1, ``[..., 3]``.
        conformity: theta, in [2/3, 1]; below, the mixtures do not form a triangle.

    Returns:
        Weights of at most 1 / (3 theta) that sum to 1, same shape.

    Examples:
        >>> narrowed(torch.tensor([1.0, 0.0, 0.0]), 2 / 3)
        tensor([0.0000, 0.5000, 0.5000])
    """
    most = 1 / (3 * conformity)
    return most - (3 * most - 1) * mixtures
