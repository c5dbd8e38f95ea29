"""The least value of a quadratic form on the simplex.

Up to its length, the best ``a`` is the ``x`` with the least ``x^T P x / 2 - sum(x)`` among those without a negative
entry: a problem of least squares, as ``P`` is ``R^T R``.
"""

import torch
from scipy.optimize import nnls
from torch import Tensor

RIDGE = 1e-12  # least eigenvalue, beside a mean diagonal of 1


def least_on_simplex(matrix: Tensor) -> Tensor:
    """The weights a, none below 0 and with sum 1, for which ``a^T matrix a`` is least.

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
    found, _ = nnls((roots * vectors).T.numpy(), (vectors.sum(0) / roots).numpy())
    return torch.from_numpy(found / found.sum())
