import subprocess
import sys

import pytest

from pfl_lightning import memory

ROUNDS = """
import resource, sys, torch
from pfl_lightning.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def fill():
    return [torch.ones(7 << 20) for _ in range(4)]
def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    fill()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(new_pages() for _ in range(8)))  # other things of the process may take pages now and then
"""


@pytest.mark.skipif(memory.platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again_without_new_pages():
    def fewest(mode, processes):  # where the heap lies is chance, and sometimes it cannot grow
        runs = ([sys.executable, "-c", ROUNDS, mode] for _ in range(processes))
        return min(int(subprocess.run(run, capture_output=True, text=True, check=True).stdout) for run in runs)

    assert fewest("keep", 6) < 100 < fewest("leave", 2)


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    assert not memory.keep_freed_memory()
