import io
import time

import pytest
from rich.console import Console
from rich.progress import track

from pfl_lightning.data import progress


@pytest.fixture
def terminal(monkeypatch):
    """What a terminal of 80 columns shows."""
    shown = io.StringIO()
    monkeypatch.setattr(progress, "CONSOLE", Console(file=shown, force_terminal=True, width=80))
    return shown


def test_a_bar_for_one_part_of_the_loading_is_below_it(terminal):
    with progress.loading("CINIC10"):
        for _ in track(range(3), "Decoding", **progress.on_terminal()):
            time.sleep(0.1)
    assert "Loading CINIC10" in terminal.getvalue()
    assert "Decoding" in terminal.getvalue()


def test_without_a_terminal_nothing_is_shown(capsys):
    with progress.loading("CIFAR10"):
        time.sleep(0.1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
