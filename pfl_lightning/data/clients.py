import hashlib
from collections.abc import Collection
from copy import copy

import numpy as np
import torch

from pfl_lightning.client import Examples, Samples
from pfl_lightning.client.examples import Transform
from pfl_lightning.data.partitions.partition import Indices, Parts
from pfl_lightning.tasks import Task


class ClientTable:
    """The sample indices of all clients in one flat table; the cost of looking up a cohort only depends on its size.

    Args:
        samples: The samples of all clients.
        parts: Indices into the samples, one array per client.
    """

    def __init__(self, samples: Samples, parts: Parts) -> None:
        self.samples = samples
        self.counts = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        self.starts = self.counts.cumsum(0) - self.counts
        # one extra entry, so that the padding of clients without samples has an index to point to
        self.flat = torch.from_numpy(np.concatenate([*parts, np.zeros(1, dtype=np.int64)]))

    def __len__(self) -> int:
        return len(self.counts)

    def of(self, clients: torch.Tensor) -> "ClientTable":
        """The same samples, of some clients alone, ``[clients]``; the others hold none."""
        table = copy(self)
        table.counts = self.counts.where(clients, 0)
        return table

    def class_counts(self, task: Task) -> Indices:
        """Number of samples per client and class, ``[clients, classes]``."""
        classes = task.labels(self.samples.targets[self.flat[:-1]])
        holders = torch.arange(len(self)).repeat_interleave(self.counts)
        counts = torch.bincount(holders * task.classes + classes, minlength=len(self) * task.classes)
        return counts.view(len(self), task.classes).numpy()

    def examples(self, ids: torch.Tensor) -> Examples:
        """The examples of the clients with these ids, ``[clients]``, in this order."""
        counts = self.counts[ids]
        column = torch.arange(int(counts.max()) if len(ids) else 0)
        places = self.starts[ids][:, None] + torch.where(column < counts[:, None], column, 0)
        return Examples(self.samples, ids, self.flat[places], counts, ids)


def fingerprint_of(tables: Collection[ClientTable], transform: Transform) -> str:
    """Hash of all samples, who holds which, and the constants of what transforms them.

    Args:
        tables: The splits, which share the samples.
        transform: Turns raw inputs into network inputs.
    """
    samples = next(iter(tables)).samples
    holdings = [tensor for table in tables for tensor in (table.flat, table.counts)]
    constants = [value for value in vars(transform).values() if isinstance(value, torch.Tensor)]
    return hash_of(samples.inputs, samples.targets, *holdings, *constants)


def hash_of(*tensors: torch.Tensor) -> str:
    """Hash of what tensors hold; 100 MB take about 0.2 s."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
