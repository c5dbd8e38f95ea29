import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from pfl_lightning.client import Examples
from pfl_lightning.errors import PflError
from pfl_lightning.federation.progress import Progress
from pfl_lightning.memory import LARGEST

CPU_BYTES = LARGEST  # largest stacked tensor of a chunk on a CPU: the allocator keeps and reuses blocks up to this size
DEVICE_BYTES = 1 << 30  # all stacked tensors of a chunk on an accelerator

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Chunks:
    """Splits a cohort into chunks of clients that fit in memory; chunks shrink when an accelerator runs out of memory.

    Args:
        chunk_size: Clients per chunk; None for a fixed rule by memory.
        sizes: Bytes of each tensor of one client.
        progress: Told of the clients that are done.

    Attributes:
        limit: Maximum chunk size since memory ran out; None if it never did.
    """

    def __init__(self, chunk_size: int | None, sizes: Sequence[int], progress: Progress | None = None) -> None:
        self.chunk_size, self.sizes, self.progress = chunk_size, sizes, progress or Progress()
        self.limit: int | None = None

    def size(self, device: torch.device, differing: Sequence[int] = ()) -> int:
        """Clients per chunk; arguments as for ``map``."""
        rule = max(_room(sizes, device) for sizes in (self.sizes, differing) if sizes)
        size = self.chunk_size or rule
        return min(size, self.limit or size)

    def map(
        self, work: Callable[[int, Examples], Result], examples: Examples, differing: Sequence[int] = ()
    ) -> Iterator[Result]:
        """Call a function on each chunk of clients, and yield its results in order.

        Args:
            work: Takes the position of a chunk's first client, and the chunk. It must have no side effects: if an
                accelerator runs out of memory, it is called again with half as many clients.
            examples: Examples of all clients.
            differing: Bytes of what the work stacks of one client, if this is known; work on small parts of the network
                then takes more clients at once.

        Raises:
            PflError: If there is not enough memory for one client.
        """
        start = 0
        while start < len(examples):
            size = self.size(examples.ids.device, differing)
            try:
                result = work(start, examples.rows(start, start + size))
            except torch.OutOfMemoryError as error:
                self._halve(min(size, len(examples)), error)
                continue
            start += size
            self.progress.reach(size + min(0, len(examples) - start))
            yield result
            del result  # free its memory before the next chunk

    def _halve(self, size: int, error: Exception) -> None:
        if size == 1:
            raise PflError("not enough memory on the device, even for one client at a time") from error
        self.limit = size // 2
        log.warning("out of memory with %d clients at once; continuing with %d", size, self.limit)


def _room(sizes: Sequence[int], device: torch.device) -> int:
    """For how many clients a device has room, given bytes of each tensor of one client; at least for one."""
    return max(1, CPU_BYTES // max(sizes) if device.type == "cpu" else DEVICE_BYTES // sum(sizes))
