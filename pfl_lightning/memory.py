"""Keeps the memory that tensors give back, so that the next round need not ask the system for it."""

import ctypes
import platform

LARGEST = 32 << 20  # glibc allows no higher threshold: what is larger comes from the system and goes back to it
_OPTIONS = {"M_TRIM_THRESHOLD": (-1, (1 << 31) - 1), "M_TOP_PAD": (-2, 64 << 20), "M_MMAP_THRESHOLD": (-3, LARGEST)}


def keep_freed_memory() -> bool:
    """Tell the C library's allocator to keep blocks of up to 32 MiB that are freed; without glibc nothing happens.

    Otherwise the tensors of every round are new pages, which the system fills with zeros first. The process does not
    shrink any more; where long-lived tensors lie between, it can hold more than it ever needed at once.

    Returns:
        Whether glibc took the settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) == 1 for option, value in _OPTIONS.values())
