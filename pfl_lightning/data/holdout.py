"""Holding out samples of clients for validation and testing."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from pfl_lightning.data.partitions import Parts


def hold_out(parts: Sequence[np.ndarray], fraction: float, rng: Generator, overlap: int = 0) -> tuple[Parts, Parts]:
    """Hold out a share of every client's samples, at random unless neighbouring samples overlap.

    Args:
        parts: Sample indices of each client.
        fraction: The share; 0 for none.
        rng: Source of randomness.
        overlap: Number of successive samples that share content, such as windows of one text. If not 0, a client's last
            samples are held out, and up to this many samples before them are dropped.

    Returns:
        The samples that each client keeps (at least one), and those that are held out (at least one, if possible).
    """
    if overlap:
        return _hold_out_the_end(parts, fraction, overlap)
    shuffled = [rng.permutation(part) for part in parts]
    sizes = [held_out_size(len(part), fraction) for part in parts]
    kept = [part[size:] for part, size in zip(shuffled, sizes, strict=True)]
    return kept, [part[:size] for part, size in zip(shuffled, sizes, strict=True)]


def _hold_out_the_end(parts: Sequence[np.ndarray], fraction: float, overlap: int) -> tuple[Parts, Parts]:
    ordered = [np.sort(part) for part in parts]
    starts = [len(part) - held_out_size(len(part), fraction) for part in ordered]
    ends = [
        max(1, start - overlap) if start < len(part) else start for part, start in zip(ordered, starts, strict=True)
    ]
    kept = [part[:end] for part, end in zip(ordered, ends, strict=True)]
    return kept, [part[start:] for part, start in zip(ordered, starts, strict=True)]


def hold_out_clients(parts: Sequence[np.ndarray], training_clients: int) -> tuple[Parts, Parts]:
    """Hold out all samples of the last clients, and none of the others.

    Args:
        parts: Sample indices of each client.
        training_clients: Number of clients that keep their samples.

    Returns:
        The samples that each client keeps, and those that are held out.

    Example:
        >>> kept, held = hold_out_clients([np.array([4, 5]), np.array([6])], training_clients=1)
        >>> [part.tolist() for part in kept], [part.tolist() for part in held]
        ([[4, 5], []], [[], [6]])
    """
    nothing = np.zeros(0, dtype=np.int64)
    behind = len(parts) - training_clients
    return [*parts[:training_clients], *[nothing] * behind], [*[nothing] * training_clients, *parts[training_clients:]]


def held_out_size(samples: int, fraction: float) -> int:
    """Number of samples to hold out from a client: the share, at least 1, but always leaving 1.

    Example:
        >>> [held_out_size(samples, 0.1) for samples in (1, 2, 20)]
        [0, 1, 2]
    """
    return max(0, min(max(1, round(samples * fraction)), samples - 1)) if fraction > 0 else 0
