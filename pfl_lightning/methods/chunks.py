import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from pfl_lightning.client import Examples
from pfl_lightning.errors import PflError
from pfl_lightning.memory import LARGEST

CPU_BYTES = LARGEST  # one tensor of all clients at once on a CPU: what its allocator keeps
DEVICE_BYTES = 1 << 30  # all tensors of all clients at once on an accelerator

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Chunks:
    """Cuts a cohort into as many clients as are in memory at once; fewer after an accelerator ran out of memory.

    Args:
        chunk_size: Clients at once; by a fixed rule when None.
        sizes: Bytes of each of one client's tensors.

    Attributes:
        limit: The most clients at once since memory ran out; None if it never did.
    """

    def __init__(self, chunk_size: int | None, sizes: Sequence[int]) -> None:
        self.chunk_size, self.sizes = chunk_size, sizes
        self.limit: int | None = None

    def size(self, device: torch.device) -> int:
        """Clients at once."""
        rule = CPU_BYTES // max(self.sizes) if device.type == "cpu" else DEVICE_BYTES // sum(self.sizes)
        size = self.chunk_size or max(1, rule)
        return min(size, self.limit or size)

    def map(self, work: Callable[[int, Examples], Result], examples: Examples) -> Iterator[Result]:
        """Results of some work for chunks of clients, in order.

        Args:
            work: Takes the position of the first client of a chunk, and the chunk; it changes nothing, since it is
                done again with half of the clients where an accelerator's memory does not suffice.
            examples: The examples of all clients.

        Raises:
            PflError: If the memory does not suffice for one client.
        """
        start = 0
        while start < len(examples):
            size = self.size(examples.ids.device)
            try:
                result = work(start, examples.rows(start, start + size))
            except torch.OutOfMemoryError as error:
                self._halve(min(size, len(examples)), error)
                continue
            start += size
            yield result
            del result  # it would take memory beside the next chunk

    def _halve(self, size: int, error: Exception) -> None:
        if size == 1:
            raise PflError("the memory of the device does not suffice for one client at a time") from error
        self.limit = size // 2
        log.warning("out of memory with %d clients at once; going on with %d", size, self.limit)
