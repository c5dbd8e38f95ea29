import subprocess
import sys

import pytest

from pfl_lightning import memory

KEEP = "from pfl_lightning.memory import keep_freed_memory; print(keep_freed_memory())"


@pytest.mark.skipif(memory.platform.libc_ver()[0] != "glibc", reason="another C library")
def test_glibc_takes_the_settings():
    # in a process of its own: they cannot be taken back
    run = subprocess.run([sys.executable, "-c", KEEP], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    assert not memory.keep_freed_memory()
