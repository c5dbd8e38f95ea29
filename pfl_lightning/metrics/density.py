from collections.abc import Iterable

import torch
from torch import Tensor


def density(tensors: Iterable[Tensor], threshold: float = 0.0) -> Tensor:
    """Share of the entries of some tensors whose absolute value is above a threshold, in [0, 1].

    The FedMac paper (Liu et al., arXiv:2107.05330) calls it sparsity.

    Example:
        >>> density([torch.tensor([0.5, 0.0]), torch.tensor([[-2.0], [1e-4]])], threshold=1e-3)
        tensor(0.5000)
    """
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return (flat.abs() > threshold).sum() / flat.numel()
