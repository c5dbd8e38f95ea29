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
for _ in range(3):
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(memory.platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again_without_new_pages():
    faults = {}
    for mode in ("keep", "leave"):
        run = subprocess.run([sys.executable, "-c", ROUNDS, mode], capture_output=True, text=True, check=True)
        faults[mode] = int(run.stdout)
    assert faults["keep"] < 10 < faults["leave"]


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    assert not memory.keep_freed_memory()
