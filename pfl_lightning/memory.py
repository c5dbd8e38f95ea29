"""Keeps the memory that tensors give back, so that the next round need not ask the system for it."""

import ctypes
import platform

_MALLOPT = {"M_TRIM_THRESHOLD": (-1, (1 << 31) - 1), "M_TOP_PAD": (-2, 64 << 20), "M_MMAP_MAX": (-4, 0)}


def keep_freed_memory() -> bool:
    """Tell the C library's allocator to keep what is freed; where that is not glibc, nothing happens.

    Otherwise large tensors are new pages in every round, which the system fills with zeros first. The memory that the
    process holds is then the most that it needed at once.

    Returns:
        Whether the allocator does so.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) == 1 for option, value in _MALLOPT.values())
