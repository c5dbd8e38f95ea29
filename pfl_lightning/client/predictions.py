from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Predictions(NamedTuple):
    """Outputs of some clients' models for some of their examples.

    Attributes:
        rows: Positions of these clients in the cohort.
        outputs: ``[clients, samples, outputs]``.
        targets: ``[clients, samples]``.
        present: False where a client has fewer samples than others, ``[clients, samples]``.
    """

    rows: Tensor | slice
    outputs: Tensor
    targets: Tensor
    present: Tensor


Watch = Callable[[Predictions], None]


def join_outputs(predictions: Iterable[Predictions], clients: int) -> Tensor:
    """Join the outputs for all samples of some clients, ``[clients, longest, ...]``; where there is none are zeros."""
    parts = []
    for rows, outputs, *_ in predictions:
        parts.append(outputs.new_zeros(clients, *outputs.shape[1:]))
        parts[-1][rows] = outputs
    return torch.cat(parts, dim=1)


class ClientPredictions:
    """Collects the predictions for each client of a cohort.

    Args:
        clients: Number of clients.
    """

    def __init__(self, clients: int) -> None:
        self.parts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(clients)]

    def __call__(self, predictions: Predictions) -> None:
        """Add some predictions."""
        rows, outputs, targets, present = predictions
        chosen = self.parts[rows] if isinstance(rows, slice) else [self.parts[row] for row in rows.tolist()]
        for row, parts in enumerate(chosen):
            parts.append((outputs[row][present[row]], targets[row][present[row]]))

    def map(self, measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Apply a function to each client's outputs ``[samples, outputs]`` and targets ``[samples]``.

        Returns:
            Its values, ``[clients]``; nan for a client without samples.
        """
        values = [measure(*map(torch.cat, zip(*parts, strict=True))) if parts else None for parts in self.parts]
        return torch.stack([torch.tensor(torch.nan) if value is None else value.cpu() for value in values])
