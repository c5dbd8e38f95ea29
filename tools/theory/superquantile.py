"""Where Delta-FL and FedAvg end for devices of Gaussian data, in closed form.

All devices are equally large, n of them: a test device of conformity theta mixes them by weights of at most
``1 / (n theta)`` that sum to 1, and its loss is the mean of their losses under these weights. FedAvg is the case of
theta = 1, with equal weights.

Paper: Laguel, Pillutla, Malick, Harchaoui, "Device Heterogeneity in Federated Learning: A Superquantile Approach",
2020, arXiv:2002.11223, Figure 3. Derivations: docs/evidence/derivations.md, Three Gaussians.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from pfl_lightning.errors import PflError

AROUND = ((0, 1, 2), (0, 2, 1), (1, 2, 0), (2, 1, 0), (2, 0, 1), (1, 0, 2))  # neighbours swap 0 and 1, or 1 and 2


def worst_mixture(devices: int, conformity: float) -> Tensor:
    """Weights of the mixture with the largest loss, for devices that are sorted by falling loss.

    Args:
        devices: Number of devices, n.
        conformity: theta, in (0, 1].

    Returns:
        Weights that sum to 1, the largest possible ones first, float64 ``[devices]``.

    Raises:
        PflError: If there is no such conformity.

    Examples:
        >>> worst_mixture(4, 0.4)
        tensor([0.6250, 0.3750, 0.0000, 0.0000], dtype=torch.float64)
    """
    if not 0 < conformity <= 1:
        raise PflError(f"conformity: {conformity} is not possible; allowed: more than 0, at most 1")
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


def circumcentre(triangle: Tensor) -> Tensor:
    """The point that is equally far from the corners of a triangle.

    Args:
        triangle: Corners, which are not on one line, ``[3, 2]``.

    Returns:
        The point, ``[2]``.

    Examples:
        >>> circumcentre(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
        tensor([1., 1.])
    """
    sides = triangle[1:] - triangle[0]
    centre: Tensor = triangle[0] + torch.linalg.solve(2 * sides, sides.square().sum(-1))
    return centre


def superquantile_minimizer(triangle: Tensor, conformity: float) -> Tensor:
    """The model with the smallest F_theta for three devices: that of Delta-FL, and with theta = 1 that of FedAvg.

    It is the point nearest to the circumcentre among the means of all test devices. For theta = 2/3 these are the
    triangle of the midpoints of the sides, so it is the circumcentre if the triangle is acute, and otherwise the
    midpoint of the longest side.

    Args:
        triangle: Means of the devices' Gaussian data, which are not on one line, ``[3, 2]``.
        conformity: theta, in (0, 1].

    Returns:
        The point, ``[2]``.

    Examples:
        >>> superquantile_minimizer(torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0]]), 2 / 3)
        tensor([2., 0.])
    """
    centre = circumcentre(triangle)
    shares = torch.linalg.solve(torch.cat([triangle.T, torch.ones(1, 3).to(triangle)]), pad(centre, (0, 1), value=1.0))
    if shares.min() >= 0 and shares.max() <= 1 / (3 * conformity):  # a test device has its mean there
        return centre
    corners = extreme_mixtures(conformity).to(triangle) @ triangle
    nearest = _nearest_on_segments(centre, corners, corners.roll(-1, 0))
    return nearest[(nearest - centre).square().sum(-1).argmin()]


def extreme_mixtures(conformity: float) -> Tensor:
    """Corners of the set of all mixtures of three devices with a conformity, in the order of its border.

    Args:
        conformity: theta, in (0, 1]. From 2/3 on, and up to 1/3, there are three corners, and each comes twice.

    Returns:
        Weights, float64 ``[6, 3]``.
    """
    return worst_mixture(3, conformity)[torch.tensor(AROUND)]


def narrowed(mixtures: Tensor, conformity: float) -> Tensor:
    """Maps all mixtures of three devices onto those with a conformity, linearly: a uniform draw stays uniform.

    Args:
        mixtures: Weights that sum to 1, ``[..., 3]``.
        conformity: theta, in [2/3, 1].

    Returns:
        Weights of at most 1 / (3 theta) that sum to 1, same shape.

    Raises:
        PflError: If the conformity is smaller; then the mixtures do not form a triangle.

    Examples:
        >>> narrowed(torch.tensor([1.0, 0.0, 0.0]), 2 / 3)
        tensor([0.0000, 0.5000, 0.5000])
    """
    most = 1 / (3 * conformity)
    if not 1 / 3 <= most <= 1 / 2:
        raise PflError(f"conformity: {conformity} is not possible; allowed: 2/3 to 1")
    return most - (3 * most - 1) * mixtures


def _nearest_on_segments(point: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """The nearest point on each segment, ``[segments, dimension]``; a segment may be a single point."""
    along = ends - starts
    lengths = along.square().sum(-1).clamp(min=torch.finfo(along.dtype).tiny)
    share = (((point - starts) * along).sum(-1) / lengths).clamp(0, 1)
    return starts + share[:, None] * along
