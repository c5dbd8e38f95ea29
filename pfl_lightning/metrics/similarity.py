"""How alike pairs of clients are, by symmetric matrices ``[clients, clients]``, and how far two spaces are apart."""

import torch
from torch import Tensor

EQUAL = 1e-9  # cosines of equal vectors differ by rounding


def pairs(matrix: Tensor) -> Tensor:
    """The entries above the diagonal: one for each pair of clients, ``[clients * (clients - 1) / 2]``.

    Examples:
        >>> pairs(torch.tensor([[1.0, 0.5, 0.2], [0.5, 1.0, 0.3], [0.2, 0.3, 1.0]]))
        tensor([0.5000, 0.2000, 0.3000])
    """
    above = torch.ones_like(matrix, dtype=torch.bool).triu(diagonal=1)
    return matrix[above]


def pair_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Pearson's correlation, over all pairs of clients, between two similarities.

    Paper: DePRL compares the cosines of its clients' data with those of their heads by eye (Xiong et al., AAAI 2024,
    arXiv:2312.10815, Figure 3).

    Args:
        first: A similarity of every two clients, ``[clients, clients]``.
        second: Another one, ``[clients, clients]``.

    Returns:
        A number in [-1, 1], ``[]``; nan if one of the similarities is the same for all pairs.

    Examples:
        >>> alike = torch.tensor([[1.0, 0.5, 0.2], [0.5, 1.0, 0.3], [0.2, 0.3, 1.0]])
        >>> round(pair_correlation(alike, 1 - alike).item(), 9)
        -1.0
    """
    x, y = (pairs(matrix).double() for matrix in (first, second))
    x -= x.mean()
    y -= y.mean()
    if not len(x) or x.abs().max() < EQUAL or y.abs().max() < EQUAL:
        return x.new_tensor(torch.nan)
    correlation: Tensor = x @ y / (x.norm() * y.norm())
    return correlation


def orthonormal(matrix: Tensor) -> Tensor:
    """The Q of the thin QR decomposition with a positive diagonal of R, which makes it unique.

    Args:
        matrix: Basis of a space in its columns, ``[dimension, rank]``.

    Returns:
        An orthonormal basis of the same space, same shape.

    Examples:
        >>> orthonormal(torch.tensor([[0.0], [2.0]])).abs()
        tensor([[0.],
                [1.]])
    """
    q, r = torch.linalg.qr(matrix)
    basis: Tensor = q * torch.where(r.diagonal() < 0, -1, 1).to(q.dtype)
    return basis


def principal_angle_distance(one: Tensor, other: Tensor) -> Tensor:
    """Sine of the largest principal angle between two spaces.

    Formula: || (I - Q1 Q1^T) Q2 ||_2 of orthonormal bases Q1 and Q2; any bases may be given.

    Args:
        one: Basis of the first space in its columns, ``[dimension, rank]``.
        other: Basis of the second one, same shape.

    Returns:
        A number in [0, 1], to the precision of the inputs also near 0; symmetric, ``[]``.

    Examples:
        >>> float(principal_angle_distance(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])))
        1.0
    """
    one, other = orthonormal(one), orthonormal(other)
    sine: Tensor = torch.linalg.matrix_norm(other - one @ (one.T @ other), ord=2).clamp(max=1)
    return sine
