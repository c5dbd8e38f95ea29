"""The weights of clients' models: in the server's mean, in a mix for another client, and on the simplex.

Paper of the attention: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021,
arXiv:2007.03797.
"""

from typing import Literal

import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn import functional as F

Weighting = Literal["samples", "uniform"]
CLOSEST = 0.9999  # similarity of a model with itself, whose weight must be finite
RIDGE = 1e-12  # least eigenvalue, beside a mean diagonal of 1
SCALES = 1000  # of points that are spread on the simplex
NEAREST = 1e-4  # their distances count as at least this


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


def cosine_attention(products: Tensor, self_weight: float, sigma: float) -> Tensor:
    """HeurFedAMP's weights: a constant weight for a client's own model, and a softmax of cosines for the others.

    Formula, for j other than i: ``(1 - self_weight) exp(sigma cos_ij) / sum over h other than i of exp(sigma cos_ih)``.

    Args:
        products: Inner products of the clients' models, ``[clients, clients]``.
        self_weight: Weight of a client's own model, in [0, 1]; always 1 for a single client.
        sigma: Sharpness of the softmax, positive and finite.

    Returns:
        Float64 weights with rows that sum to 1, ``[receivers, senders]``.

    Examples:
        >>> models = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
        >>> cosine_attention(models @ models.T, self_weight=0.4, sigma=2.0)
        tensor([[0.4000, 0.4827, 0.1173],
                [0.3000, 0.4000, 0.3000],
                [0.1173, 0.4827, 0.4000]], dtype=torch.float64)
    """
    similarity = cosines(products)
    if len(similarity) == 1:
        return torch.ones_like(similarity)
    shares = (sigma * similarity).fill_diagonal_(-torch.inf).softmax(dim=1)  # which subtracts each row's largest entry
    return shares.mul_(1 - self_weight).fill_diagonal_(self_weight)


def distance_attention(products: Tensor, sigma: float, lr: float) -> Tensor:
    """FedAMP's weights, which fall with the distance between models; a client's own model gets the rest of 1.

    Formula, for j other than i: ``lr / sigma exp(-|w_i - w_j|^2 / sigma)``. The mix is a gradient step of rate ``lr``
    on half of ``sum over j of 1 - exp(-|w_i - w_j|^2 / sigma)``.

    Args:
        products: Inner products of the clients' models, ``[clients, clients]``.
        sigma: Squared distance at which attention has fallen to 1/e, positive and finite.
        lr: Rate of the step; up to ``sigma / (clients - 1)`` no weight can be negative.

    Returns:
        Float64 weights with rows that sum to 1, ``[receivers, senders]``.

    Examples:
        >>> models = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
        >>> distance_attention(models @ models.T, sigma=1.0, lr=0.5)
        tensor([[0.8127, 0.1839, 0.0034],
                [0.1839, 0.7484, 0.0677],
                [0.0034, 0.0677, 0.9290]], dtype=torch.float64)
    """
    weights = (-squared_distances(products) / sigma).exp_().mul_(lr / sigma).fill_diagonal_(0)
    return weights + torch.diag(1 - weights.sum(dim=1))


def overlap_attention(common: Tensor, progress: float) -> Tensor:
    """FedCAC's weights: equal ones for a client's own model and those of clients with much the same critical entries.

    Others count from ``(1 - progress) * mean + progress * max`` of the entries that two clients have in common.

    Args:
        common: Number of critical entries that two clients have in common, ``[clients, clients]``.
        progress: (t + 1) / mix_rounds in round t, in [0, 1].

    Returns:
        Float64 weights with rows that sum to 1, ``[receivers, senders]``.

    Examples:
        >>> critical = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
        >>> overlap_attention(critical @ critical.T, progress=1.0)
        tensor([[0.5000, 0.0000, 0.5000],
                [0.0000, 1.0000, 0.0000],
                [0.5000, 0.0000, 0.5000]], dtype=torch.float64)
    """
    itself = torch.eye(len(common), dtype=torch.bool)
    if len(common) == 1:
        return itself.double()
    others = common.double()[~itself]
    limit = others.mean().lerp(others.max(), progress)  # exactly the largest one at the end
    joined = ((common >= limit) | itself).double()
    return joined / joined.sum(dim=1, keepdim=True)


def similarity_attention(similarities: Tensor) -> Tensor:
    """The weights of pFedSim: ``-log(1 - s)`` of similarities, over their sum; a client's own model has s = 0.9999.

    Args:
        similarities: Up to 1, ``[clients, clients]``; negative ones count as 0.

    Returns:
        Float64 weights with rows that sum to 1, ``[receivers, senders]``.

    Examples:
        >>> similarity_attention(torch.tensor([[1.0, 0.8, -0.3], [0.8, 1.0, 0.5], [-0.3, 0.5, 1.0]]))
        tensor([[0.8513, 0.1487, 0.0000],
                [0.1398, 0.8000, 0.0602],
                [0.0000, 0.0700, 0.9300]], dtype=torch.float64)
    """
    weights = -torch.log1p(-similarities.double().clamp(0, CLOSEST).fill_diagonal_(CLOSEST))
    return weights / weights.sum(dim=1, keepdim=True)


def cosines(products: Tensor) -> Tensor:
    """Cosines between models; 0 if one of the two is all zeros.

    Args:
        products: Their inner products, ``[clients, clients]``.

    Returns:
        Float64 in [-1, 1], ``[clients, clients]``.

    Examples:
        >>> cosines(torch.tensor([[4.0, 3.0], [3.0, 9.0]]))
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]], dtype=torch.float64)
    """
    products = products.double()
    norms = products.diagonal().sqrt()
    scale = torch.outer(norms, norms)
    return (products / scale.masked_fill(scale == 0, 1)).clamp_(-1, 1)


def squared_distances(products: Tensor) -> Tensor:
    """Squared Euclidean distances between models.

    Args:
        products: Their inner products, ``[clients, clients]``.

    Returns:
        Float64, ``[clients, clients]``.

    Examples:
        >>> squared_distances(torch.tensor([[4.0, 3.0], [3.0, 9.0]]))
        tensor([[0., 7.],
                [7., 0.]], dtype=torch.float64)
    """
    products = products.double()
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp_(min=0)


def least_on_simplex(matrix: Tensor) -> Tensor:
    """The weights a, none below 0 and with sum 1, for which ``a^T matrix a`` is least.

    Up to its length, the best ``a`` is the ``x`` with the least ``x^T matrix x / 2 - sum(x)`` among those without a
    negative entry: a problem of least squares, as ``matrix`` is ``R^T R``.

    Args:
        matrix: Float64, symmetric and positive semidefinite, ``[entries, entries]``.

    Returns:
        The weights, ``[entries]``; where several are best, one of them.

    Examples:
        >>> least_on_simplex(torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 2.0], [2.0, 2.0, 9.0]]).double())
        tensor([0.7500, 0.2500, 0.0000], dtype=torch.float64)
    """
    scale = matrix.diagonal().mean()
    values, vectors = torch.linalg.eigh(matrix / scale.where(scale > 0, 1))
    roots = values.clamp(min=RIDGE).sqrt()
    weights, _ = nnls((roots * vectors).T.numpy(), (vectors.sum(0) / roots).numpy())
    return torch.from_numpy(weights / weights.sum())


def nearest_on_simplex(points: Tensor) -> Tensor:
    """The weights nearest to each point, none below 0 and with sum 1.

    They are the coordinates of the point less one number for all, and 0 where that is negative.

    Args:
        points: ``[points, entries]``.

    Returns:
        The weights, ``[points, entries]``.

    Examples:
        >>> nearest_on_simplex(torch.tensor([[0.9, 0.5, -0.4], [5.0, 2.0, 2.0]]))
        tensor([[0.7000, 0.3000, 0.0000],
                [1.0000, 0.0000, 0.0000]])
    """
    points = points - points.amax(dim=1, keepdim=True)  # so that 1 counts beside large coordinates
    largest = points.sort(dim=1, descending=True).values
    numbers = (largest.cumsum(1) - 1) / torch.arange(1, points.shape[1] + 1)  # if so many weights are above 0
    positive = (largest > numbers).sum(dim=1, keepdim=True)
    return (points - numbers.gather(1, positive - 1)).clamp(min=0)


def principal_coordinates(products: Tensor, count: int) -> Tensor:
    """Coordinates of some vectors by PCA, float64 ``[vectors, count]``; 0 where they have no more directions.

    The largest one in each direction, whichever sign it has, becomes positive.

    Args:
        products: Inner products of the vectors, float64 ``[vectors, vectors]``.
        count: Number of coordinates.
    """
    centred = products - products.mean(0) - products.mean(1, keepdim=True) + products.mean()
    values, vectors = torch.linalg.eigh(centred)
    values = values.where(values > 1e-9 * values.max(), 0)
    coordinates = (vectors * values.sqrt()).flip(1)[:, :count]
    signs = coordinates.gather(0, coordinates.abs().argmax(0, keepdim=True)).sign()
    return F.pad(coordinates * signs, (0, count - coordinates.shape[1]))


def spread_on_simplex(coordinates: Tensor) -> Tensor:
    """The points of the simplex nearest to some points, at the scale that moves them farthest apart.

    Args:
        coordinates: ``[points, entries]``.
    """
    largest = coordinates.abs().max()
    scales = largest.where(largest > 0, 1) * torch.linspace(1 / SCALES, 1, SCALES, dtype=largest.dtype)
    candidates = [nearest_on_simplex(coordinates / scale) for scale in scales]
    energies = [torch.pdist(points).clamp(min=NEAREST).pow(-2).sum() for points in candidates]
    return candidates[int(torch.stack(energies).argmin())]
