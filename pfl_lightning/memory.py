"""Allocator settings that keep freed memory in the process between rounds."""

import ctypes
import platform

LARGEST = 32 << 20  # glibc's maximum threshold: larger blocks always come from the OS and go back to it
_OPTIONS = {"M_TRIM_THRESHOLD": (-1, (1 << 31) - 1), "M_TOP_PAD": (-2, 64 << 20), "M_MMAP_THRESHOLD": (-3, LARGEST)}


def is_exhausted(error: BaseException) -> bool:
    """Whether an error means out of memory; torch raises a plain RuntimeError with one of several messages."""
    said = str(error)
    torch_says = "can't allocate memory" in said or "out of memory" in said or "size calculation overflowed" in said
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and torch_says)


def keep_freed_memory() -> bool:
    """Tell the C library's allocator to keep freed blocks of up to 32 MiB; does nothing without glibc.

    Otherwise the tensors of every round get new pages, which the OS has to zero first. The price is that the process
    never shrinks, and through fragmentation can hold more memory than it ever needed at once.

    Returns:
        Whether glibc accepted the settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) == 1 for option, value in _OPTIONS.values())
