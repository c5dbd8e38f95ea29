from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pfl_lightning.client import Examples, Samples
from pfl_lightning.data.labelled import classes_of


class ClientTable:
    """The sample indices of all clients in one flat table; the cost of looking up a cohort only depends on its size.

    Args:
        samples: The samples of all clients.
        parts: Indices into the samples, one array per client.
    """

    def __init__(self, samples: Samples, parts: Sequence[NDArray[np.int64]]) -> None:
        self.samples = samples
        self.counts = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        self.starts = torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)])[:-1]
        # one extra entry, so that the padding of clients without samples has an index to point to
        self.flat = torch.from_numpy(np.concatenate([*parts, np.zeros(1, dtype=np.int64)]))

    def __len__(self) -> int:
        return len(self.counts)

    def class_counts(self, num_classes: int) -> NDArray[np.int64]:
        """Number of samples per client and class, ``[clients, classes]``."""
        classes = classes_of(self.samples.targets[self.flat[:-1]])
        holders = torch.arange(len(self)).repeat_interleave(self.counts)
        counts = torch.bincount(holders * num_classes + classes, minlength=len(self) * num_classes)
        return counts.view(len(self), num_classes).numpy()

    def examples(self, ids: torch.Tensor) -> Examples:
        """The examples of the clients with these ids, ``[clients]``, in this order."""
        counts = self.counts[ids]
        column = torch.arange(int(counts.max()) if len(ids) else 0)
        places = self.starts[ids][:, None] + torch.where(column < counts[:, None], column, 0)
        return Examples(self.samples, ids, self.flat[places], counts, ids)
