import sys

import pytest
from reproduction import runs

from pfl_lightning.cli.sweep import sweep_command


class Done:
    """A process that has ended well."""

    returncode = 0


@pytest.fixture
def planned(monkeypatch):
    """The runs that would be started, instead of starting them."""
    found = []
    monkeypatch.setattr(sys, "argv", ["pfl"])
    monkeypatch.setattr("pfl_lightning.cli.sweep.Sweep.execute", lambda self, run: found.append(run) or run.folder)
    monkeypatch.setattr(
        runs.subprocess, "run", lambda command, env: sweep_command(command[command.index("sweep") + 1 :]) or Done()
    )
    return found
