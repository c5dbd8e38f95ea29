"""The IDX files of MNIST and EMNIST."""

from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

BYTES = 0x800  # in the first number of a file, which also counts its axes


def read_idx(path: Path, shape: tuple[int, ...] = ()) -> Tensor:
    """Read a file of bytes.

    Args:
        path: The file: big-endian numbers of 32 bits for its kind and the length of each axis, then the bytes.
        shape: Shape of a sample.

    Returns:
        uint8 ``[samples, *shape]``.

    Raises:
        ValueError: If it is another file, samples have another shape, or it has another length than it says.
    """
    axes, content = 1 + len(shape), np.fromfile(path, np.uint8)
    start = 4 * (1 + axes)
    if len(content) < start:
        raise ValueError(f"{len(content)} bytes")
    kind, samples, *found = content[:start].view(">u4").tolist()
    if kind != BYTES + axes:
        raise ValueError(f"no IDX file of bytes along {axes} axes")
    if tuple(found) != shape:
        raise ValueError(f"samples of {_times(found)} instead of {_times(shape)}")
    if len(content) - start != (size := samples * prod(shape)):
        raise ValueError(f"{len(content) - start:,} bytes instead of {size:,} for {samples:,} samples")
    return torch.from_numpy(content[start:].reshape(samples, *shape))


def _times(shape: tuple[int, ...] | list[int]) -> str:
    return " x ".join(map(str, shape))
