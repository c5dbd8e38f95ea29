from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from pfl_lightning.tree import Params


def density(tensors: Iterable[Tensor], threshold: float = 0.0) -> Tensor:
    """Share of the entries of some tensors whose absolute value is above a threshold, in [0, 1].

    The FedMac paper (Liu et al., arXiv:2107.05330) calls it sparsity.

    Examples:
        >>> density([torch.tensor([0.5, 0.0]), torch.tensor([[-2.0], [1e-4]])], threshold=1e-3)
        tensor(0.5000)
    """
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return (flat.abs() > threshold).sum() / flat.numel()


def counts_above(stack: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Number of entries whose absolute value is above each of some thresholds, ``[rows, thresholds]``.

    Args:
        stack: ``[rows, ...]``.
        thresholds: Not negative.

    Examples:
        >>> counts_above(torch.tensor([[0.5, -0.02, 0.0], [0.0, 1.0, -1.0]]), thresholds=(0.0, 0.1))
        tensor([[2, 1],
                [2, 2]])
    """
    sizes = stack.detach().reshape(len(stack), -1).abs()
    return torch.stack([(sizes > threshold).sum(1) for threshold in thresholds], 1)


class ClientDensity(Metric):
    """Density of the clients' models, per layer and in total, as the mean over the clients; range [0, 1].

    It counts entries, so it is exact and does not depend on the chunks of clients.

    Args:
        parameters: The parameters of one model by name, in the order of its layers.
        thresholds: Entries with at most this absolute value count as zero.

    Attributes:
        layers: Names of the parameters of each layer, by the name of the layer.
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    counts: Tensor
    models: Tensor

    def __init__(self, parameters: Mapping[str, Tensor], thresholds: Sequence[float]) -> None:
        super().__init__()
        self.thresholds = tuple(thresholds)
        self.layers: dict[str, list[str]] = {}
        for name in parameters:
            self.layers.setdefault(name.partition(".")[0], []).append(name)
        self.sizes = [sum(parameters[name].numel() for name in names) for names in self.layers.values()]
        counts = torch.zeros(len(self.layers), len(self.thresholds), dtype=torch.int64)
        self.add_state("counts", counts, dist_reduce_fx="sum")
        self.add_state("models", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def measure(self, params: Params) -> Tensor:
        """Number of entries above each threshold, ``[cohort, layers, thresholds]``.

        Args:
            params: The clients' models. A tensor that they share is counted once; if they share all tensors, the result
                is that of a cohort of one.
        """
        stacks = {**{name: tensor[None] for name, tensor in params.shared.items()}, **params.own}
        layers = [sum(counts_above(stacks[n], self.thresholds) for n in names) for names in self.layers.values()]
        return torch.stack(torch.broadcast_tensors(*layers), 1)

    def update(self, ids: Tensor, measured: Tensor) -> None:
        """Add some models.

        Args:
            ids: Client ids; not used.
            measured: The result of ``measure``.
        """
        self.counts += measured.sum(0)
        self.models += len(measured)

    def compute(self) -> Tensor:
        """Density of each layer, then of the whole model, ``[layers + 1, thresholds]``."""
        sizes = self.counts.new_tensor(self.sizes)[:, None]
        counts, sizes = (torch.cat([part, part.sum(0, keepdim=True)]) for part in (self.counts, sizes))
        return counts / (sizes * self.models)
