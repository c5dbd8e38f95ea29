from collections.abc import Sequence

import torch
from torch import Tensor

from pfl_lightning import processes


class Senders:
    """The clients whose rows a process needs to mix those of its own clients: in a graph, their neighbours alone.

    Args:
        matrix: Weights, ``[receivers, senders]``; both axes are the clients ``ids``.
        ids: The clients that mix, rising, on the CPU, ``[clients]``; None for all, of which the matrix says how many.

    Attributes:
        receivers: Where this process has the rows of those of its clients that mix.
        weights: Their weights, ``[receivers, senders]``.
    """

    def __init__(self, matrix: Tensor, ids: Tensor | None) -> None:
        count, rank = processes.count(), processes.rank()
        self.receivers: slice | Tensor = slice(None) if ids is None else ids
        self.weights = matrix
        if count == 1:
            return
        ids = torch.arange(len(matrix)) if ids is None else ids
        owners = ids % count
        linked = (matrix != 0).cpu()
        needed = [linked[owners == process].any(0) for process in range(count)]
        self._here = [ids[columns & (owners == rank)] // count for columns in needed]
        columns = [(needed[rank] & (owners == process)).nonzero()[:, 0] for process in range(count)]
        self._arriving: Sequence[int] = list(map(len, columns))
        self.receivers = ids[owners == rank] // count
        self.weights = matrix[(owners == rank).to(matrix.device)][:, torch.cat(columns).to(matrix.device)]

    def rows(self, block: Tensor) -> Tensor:
        """The senders' rows, ``[senders, entries]``, of which each process has its clients' ``block``."""
        if processes.count() == 1:
            return block[self.receivers]
        return processes.exchanged([block[places] for places in self._here], self._arriving)


def everyone(rows: Tensor, clients: int) -> Tensor:
    """The rows of all clients, ``[clients, ...]``, given those of this process, ``[own clients, ...]``."""
    count = processes.count()
    if count == 1:
        return rows
    arriving = [len(range(process, clients, count)) for process in range(count)]
    parts = processes.exchanged([rows] * count, arriving).split(arriving)
    found = rows.new_empty(clients, *rows.shape[1:])
    for process, part in enumerate(parts):
        found[process::count] = part
    return found
