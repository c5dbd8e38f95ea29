"""The data of clients: one resident table with all samples, and the rows of it that belong to each client."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from pfl_lightning.seeding import Key, permutations

ENOUGH = 10  # clients in a piece: with fewer, the cost of a piece outweighs that of padding


class Transform(Protocol):
    """Turns raw samples into network inputs, a whole batch at a time, on the device of the batch."""

    random: bool

    def __call__(self, raw: Tensor, bits: Tensor | None = None) -> Tensor:
        """Transform ``[batch, ...]``; with ``bits`` (one random integer per sample), augment as well."""


@dataclass
class Samples:
    """All samples of a data set.

    Attributes:
        inputs: Raw inputs such as uint8 images, ``[samples, ...]``.
        targets: What networks learn, such as class labels, ``[samples, ...]``.
        transform: Turns raw inputs into network inputs.
    """

    inputs: Tensor
    targets: Tensor
    transform: Transform
    _resident: dict[torch.device, "Samples"] = field(default_factory=dict, repr=False)

    def to(self, device: torch.device) -> "Samples":
        """The same samples on a device; they are copied there only once."""
        if self.inputs.device == device:
            return self
        if device not in self._resident:
            self._resident[device] = Samples(self.inputs.to(device), self.targets.to(device), self.transform)
        return self._resident[device]


def largest_first(counts: Tensor) -> Tensor:
    """The order of clients for training: by decreasing number of examples; ties keep their order."""
    return counts.argsort(descending=True, stable=True)


@dataclass
class Examples:
    """The examples of some clients, padded to the largest client.

    For training, clients are in the order of ``largest_first``, so that the clients that still have a mini-batch are
    always the first ones. For evaluation any order will do.

    Attributes:
        samples: The table of samples.
        ids: Client ids, ``[clients]``.
        index: Rows of ``samples`` that belong to each client, ``[clients, longest]``; padding points to any row.
        counts: Number of examples of each client, ``[clients]``; always on the CPU, since it controls loops.
        host_ids: Client ids, ``[clients]``, always on the CPU.
        dtype: Type of the real numbers that ``gather`` and ``targets`` return. Default: as they come.
    """

    samples: Samples
    ids: Tensor
    index: Tensor
    counts: Tensor
    host_ids: Tensor
    dtype: torch.dtype | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def longest(self) -> int:
        """The largest count."""
        return int(self.counts.max()) if len(self) else 0

    @property
    def device_counts(self) -> Tensor:
        """The counts on the device of the samples, ``[clients]``."""
        return self.counts.to(self.ids.device, non_blocking=True)

    @property
    def positions(self) -> Tensor:
        """Positions of all examples and of padding, ``[clients, longest]``, for ``gather`` and ``targets``."""
        return torch.arange(self.longest, device=self.ids.device).expand(len(self), -1)

    @property
    def present(self) -> Tensor:
        """True for examples, False for padding, ``[clients, longest]``."""
        return self.positions < self.device_counts[:, None]

    @property
    def is_largest_first(self) -> bool:
        """Whether the clients are in the order that training needs."""
        return bool((self.counts[1:] <= self.counts[:-1]).all())

    def class_counts(self, classes: int) -> Tensor:
        """Number of examples of each class, ``[clients, classes]``; the targets must be class labels."""
        counts = self.device_counts.new_zeros(len(self), classes)
        return counts.scatter_add_(1, self.targets(self.positions), self.present.to(counts))

    def to(self, device: torch.device, dtype: torch.dtype | None = None, **_: object) -> "Examples":
        """The same examples on a device, with real numbers of a type; ``counts`` and ``host_ids`` stay on the CPU."""
        ids, index = (table.to(device, non_blocking=True) for table in (self.ids, self.index))
        return replace(self, samples=self.samples.to(device), ids=ids, index=index, dtype=dtype or self.dtype)

    def rows(self, start: int, stop: int) -> "Examples":
        """The examples of a slice of the clients, padded to the largest client of the slice."""
        return self._subset(slice(start, stop), slice(start, stop))

    def take(self, chosen: Tensor) -> "Examples":
        """The examples of the chosen clients, in the same order.

        Args:
            chosen: Whether each client is chosen, ``[clients]``.
        """
        return self.at(chosen.cpu().nonzero()[:, 0])

    def at(self, places: Tensor) -> "Examples":
        """The examples of the clients at these positions, which rise and are on the CPU, ``[clients]``."""
        if len(places) == len(self):
            return self
        return self._subset(places, places.to(self.ids.device, non_blocking=True))

    def _subset(self, places: Tensor | slice, rows: Tensor | slice) -> "Examples":
        """The examples of some clients, given their positions on the CPU and on the device of the samples."""
        counts = self.counts[places]
        index = self.index[rows, : int(counts.max()) if len(counts) else 0]
        return replace(self, ids=self.ids[rows], index=index, counts=counts, host_ids=self.host_ids[places])

    def sample(self, key: Key, size: int) -> "Examples":
        """``size`` random examples of each client; all examples of a client that has no more."""
        positions = permutations(key, self.ids, self.device_counts, self.longest, size)
        return replace(self, index=self.index.gather(1, positions), counts=self.counts.clamp(max=size))

    def split(self, size: int, even: bool = False) -> Iterator[tuple[int, "Examples"]]:
        """Split into pieces of at most ``size`` clients; yields the start of each piece and the piece.

        Args:
            size: Number of clients in a piece.
            even: Whether a piece of at least ``ENOUGH`` clients ends before the first client that has less than half as
                many examples as its largest; needs clients in the order of ``largest_first``.
        """
        start = 0
        while start < len(self):
            counts = self.counts[start : start + size]
            alike = int((2 * counts >= counts[0]).sum()) if even else len(counts)
            clients = min(max(alike, ENOUGH), len(counts))
            yield start, self.rows(start, start + clients)
            start += clients

    def windows(self, size: int) -> Iterator[tuple[Tensor | slice, "Examples"]]:
        """Cut the examples into batches, leaving out clients that have no more examples.

        Args:
            size: Number of examples in a batch, padding included; at least one of each client.

        Yields:
            The positions of the clients that have examples in the batch, and these examples.
        """
        start = 0
        while start < self.longest:
            places = (self.counts > start).nonzero()[:, 0]
            rows = slice(None) if len(places) == len(self) else places.to(self.ids.device, non_blocking=True)
            stop = start + max(1, size // len(places))
            window = replace(self, index=self.index[:, start:stop], counts=self.counts.clamp(max=stop) - start)
            yield rows, window._subset(places, rows)
            start = stop

    def gather(self, positions: Tensor, bits: Tensor | None = None) -> Tensor:
        """Network inputs of some examples of the first clients.

        Args:
            positions: Positions of the examples within each client, ``[clients or fewer, batch]``.
            bits: Random integers for augmentation, same shape; None for no augmentation.

        Returns:
            Inputs, ``[clients or fewer, batch, ...]``.
        """
        raw = self.samples.inputs[self.index[: len(positions)].gather(1, positions).flatten()]
        inputs = self.samples.transform(raw, None if bits is None else bits.flatten())
        return torch.unflatten(self._typed(inputs), 0, positions.shape)

    def targets(self, positions: Tensor) -> Tensor:
        """Targets of some examples of the first clients, ``[clients or fewer, batch, ...]``."""
        return self._typed(self.samples.targets[self.index[: len(positions)].gather(1, positions)])

    def _typed(self, values: Tensor) -> Tensor:
        return values.to(self.dtype) if self.dtype and values.is_floating_point() else values
