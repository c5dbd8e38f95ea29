"""The device that is measured."""

import ctypes
import resource
import sys
from pathlib import Path
from typing import Literal

import torch

from pfl_lightning.errors import PflError

Accelerator = Literal["cpu", "gpu"]
CPU = torch.device("cpu")
MEBIBYTE = 1 << 20


def device_of(accelerator: Accelerator) -> torch.device:
    """The device; of several GPUs the first that torch sees.

    Raises:
        PflError: If there is none.
    """
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise PflError("accelerator: gpu is not possible where torch sees none; allowed: cpu")
    return torch.device("cuda") if accelerator == "gpu" else CPU


def name_of(device: torch.device) -> str:
    """The device in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def finish(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device) -> bool:
    """Measure the peak of memory from now on; on a CPU free memory is given back first, or it would count.

    Returns:
        Whether that is possible here.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # Linux: VmHWM starts again
    except (AttributeError, OSError):
        return False
    return device.type == "cpu"


def peak_mebibytes(device: torch.device = CPU) -> float:
    """The most memory that this process has held: on a CPU Linux's ``ru_maxrss`` would count its parent's as well."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MEBIBYTE
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (MEBIBYTE if sys.platform == "darwin" else 1024)
