"""Projects the seconds of a round over many processes from what one process was measured to take.

``python tools/projection.py --seconds 0.38 --shared_mb 0.8`` prints a table for docs/guides/scale.md. It assumes:

* clients are trained at the same speed in all processes, and each process is alone on its cores or its GPU;
* a process visits the samples of its share, as ``processes.shares`` deals them out, and waits for the slowest one;
* sums take a ring: each process sends ``2 (k - 1) / k`` times 8 bytes for each shared number;
* of the rows that clients keep, ``(k - 1) / k`` are in another process, go to the one that trains, and come back;
* each message of a round takes ``latency_us`` times ``log2(k)``.
"""

from math import ceil, log2

import torch
from jsonargparse import auto_cli

from pfl_lightning.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pfl_lightning.processes import shares

MESSAGES = 8  # collectives of a round beside those for the rows: the sums, sizes, losses, what was sent, signals


def seconds_over(
    processes: int, costs: torch.Tensor, seconds: float, shared_mb: float, row_mb: float, gbits: float, latency: float
) -> tuple[float, float]:
    """Seconds of a round that go into computing and into messages.

    Args:
        processes: Number of processes, k.
        costs: Samples that each client visits, ``[clients]``.
        seconds: Seconds of a round in one process.
        shared_mb: Shared tensors of the model, in 10^6 bytes of float32.
        row_mb: What a client keeps, in 10^6 bytes.
        gbits: Bandwidth of a process in 10^9 bits per second.
        latency: Seconds for a message between two processes.
    """
    if processes == 1:
        return seconds, 0.0
    loads = [float(costs[places].sum()) for places in shares(costs, among=processes)]
    others = (processes - 1) / processes
    rows = 2 * others * row_mb * ceil(len(costs) / processes)
    sums = 2 * others * 2 * shared_mb
    messages = (MESSAGES + (2 if row_mb else 0)) * latency * log2(processes)
    return seconds * max(loads) / float(costs.sum()), 8e-3 * (sums + rows) / gbits + messages


def projection(
    seconds: PositiveFloat,
    clients: PositiveInt = 100,
    spread: NonNegativeFloat = 0.0,
    shared_mb: NonNegativeFloat = 0.8,
    row_mb: NonNegativeFloat = 0.0,
    gbits: PositiveFloat = 10.0,
    latency_us: PositiveFloat = 100.0,
    most: NonNegativeInt = 1024,
) -> None:
    """Print a table of the processes, the seconds of a round, and how many times faster it is than with one process.

    Args:
        seconds: Seconds of a round in one process, as measured.
        clients: Clients of a round.
        spread: Standard deviation of the logarithm of the clients' samples; 0 if all have equally many.
        shared_mb: Shared tensors of the model, in 10^6 bytes of float32.
        row_mb: What a client keeps, in 10^6 bytes.
        gbits: Bandwidth of a process in 10^9 bits per second.
        latency_us: Microseconds for a message between two processes.
        most: Largest number of processes.
    """
    costs = torch.exp(spread * torch.randn(clients, generator=torch.Generator().manual_seed(0)))
    print("| processes | computing (s) | messages (s) | round (s) | times faster |\n|---|---|---|---|---|")
    for power in range(int(log2(max(most, 1))) + 1):
        parts = seconds_over(2**power, costs, seconds, shared_mb, row_mb, gbits, latency_us * 1e-6)
        total = sum(parts)
        print(f"| {2**power} | {parts[0]:.3g} | {parts[1]:.3g} | {total:.3g} | {seconds / total:.3g} |")


if __name__ == "__main__":
    auto_cli(projection, as_positional=False)
