import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from pfl_lightning.client import Examples
from pfl_lightning.errors import PflError

CPU_BYTES = 48 << 20  # parameters of the clients in memory at once: what a CPU's cache and its allocator reuse
DEVICE_BYTES = 1 << 30  # the same on an accelerator, which is fastest with all clients at once

Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Chunks:
    """Cuts a cohort into as many clients as are in memory at once; fewer after a device ran out of memory.

    Args:
        chunk_size: Clients at once; by a fixed rule when None.
        client_bytes: Size of one client's tensors.
    """

    def __init__(self, chunk_size: int | None, client_bytes: int) -> None:
        self.chunk_size = chunk_size and int(chunk_size)  # without range checks, which a safe checkpoint cannot hold
        self.client_bytes = client_bytes

    def size(self, device: torch.device) -> int:
        """Clients at once."""
        budget = CPU_BYTES if device.type == "cpu" else DEVICE_BYTES
        return self.chunk_size or max(1, budget // self.client_bytes)

    def map(self, work: Callable[[int, Examples], Result], examples: Examples) -> Iterator[Result]:
        """Results of some work for chunks of clients, in order.

        Args:
            work: Takes the position of the first client of a chunk, and the chunk; it changes nothing, since it is
                done again with half of the clients where the device's memory does not suffice.
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
                self._halve(min(size, len(examples) - start), error)
                continue
            start += size
            yield result

    def _halve(self, size: int, error: Exception) -> None:
        if size == 1:
            raise PflError("the memory of the device does not suffice for one client at a time") from error
        self.chunk_size = size // 2
        log.warning("out of memory with %d clients at once; going on with %d", size, self.chunk_size)
