import io

import pytest
from rich.console import Console
from rich.progress import track

from pfl_lightning.data import progress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_for_one_part_of_the_loading_is_below_it_on_a_terminal_alone(is_terminal, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(progress, "CONSOLE", Console(file=shown, force_terminal=is_terminal, width=80))
    with progress.loading("CINIC10"):
        assert list(track(range(3), "Decoding", **progress.on_terminal())) == [0, 1, 2]
    assert [words in shown.getvalue() for words in ("Loading CINIC10", "Decoding")] == [is_terminal] * 2
    assert bool(shown.getvalue()) == is_terminal
