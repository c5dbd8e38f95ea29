import io
import re
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from fakes.methods import small
from rich.console import Console

from pfl_lightning.callbacks import RoundProgressBar, progress_bar
from pfl_lightning.callbacks.progress_bar import Lines, Status
from pfl_lightning.client import LocalTraining
from pfl_lightning.errors import PflError
from pfl_lightning.federation import cohort

COUNTS = torch.tensor([60, 30, 10])


@pytest.fixture
def terminal(monkeypatch):
    """What a terminal of 80 columns shows."""
    shown = io.StringIO()
    monkeypatch.setattr(progress_bar, "Console", lambda stderr: Console(file=shown, force_terminal=True, width=80))
    return shown


def drawn(status, width=80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(status)
    return console.file.getvalue().splitlines()


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """No time passes but that of ``working``."""
    now = time.monotonic()
    for module in (progress_bar, cohort):
        monkeypatch.setattr(module, "monotonic", lambda: now)


def working(doing="training", seconds=10.0, rounds=100, reached=1):
    """Where a method is that has been at work for so many seconds, and is done with some of three clients."""
    method = small()
    status = Status(method, rounds)
    status.start = status.training_start = progress_bar.monotonic() - seconds
    method.progress.begin(doing, COUNTS)
    method.progress.since = progress_bar.monotonic() - seconds
    method.progress.reach(reached)
    return status


def test_a_notebook_shows_a_bar_below_the_cell(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda content, raw: shown.append(content))
    display = SimpleNamespace(display=lambda content, raw, display_id: shown.append(content) or handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress_bar, "Console", lambda stderr: Console(force_jupyter=True))
    bar = RoundProgressBar()
    bar._start(small(), rounds=4)
    bar._status.method.accounting.clock.rounds = 3
    bar.teardown()
    assert shown[0]["text/html"].startswith('<progress max="4" value="0.0"></progress> round 0 of 4')
    assert shown[-1]["text/html"].startswith('<progress max="4" value="3.0"></progress> round 3 of 4')


def test_the_time_left_is_in_proportion_to_the_work_left():
    first, second = drawn(working(seconds=30.0))
    assert first.startswith("Round 0/100")
    assert "1:22:50 left" in first  # 99.4 % of a round's 50 seconds, and 99 rounds; 60 of 100 samples took 30 seconds
    assert second.startswith("Training")
    assert second.endswith("00:20 left, 1 of 3 clients")


def test_brief_work_has_no_line():
    assert len(drawn(working(seconds=0.5))) == 1


def test_an_evaluation_shows_its_progress_and_completes_no_round():
    first, second = drawn(working("evaluating"))
    assert first.startswith("Round 0/100")
    assert "left" not in first
    assert second.startswith("Evaluating")
    assert "1 of 3 clients" in second


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_longest_lines_fit_and_keep_their_bars(width):
    status = working("evaluating", seconds=400_000.0, rounds=20_000)
    status.method.accounting.clock.rounds = 19_999
    metrics = {"train/loss": 0.012345678, "system/cohort": 100_000, "time/total": 1.23456e12}
    status.update(SimpleNamespace(global_step=20_000, progress_bar_metrics=metrics))
    lines = drawn(status, width)
    assert [len(line) for line in lines] == [width, width]
    assert re.match(r"Round 19999/20000 [━╸]{10,} \S", lines[0])
    assert re.match(r"Evaluating        ━{6}", lines[1])
    assert width == 40 or "left, loss 0.01235" in lines[0]


@pytest.fixture
def run(ragged_data, fit):
    """Trains with a progress bar."""
    return lambda method, rounds: fit(
        method, ragged_data(), rounds, enable_progress_bar=True, callbacks=[RoundProgressBar()]
    )


def test_a_run_leaves_its_last_round_on_the_terminal(run, terminal):
    run(small(), 2)
    assert "Round 2/2" in terminal.getvalue()
    assert "6 clients" in terminal.getvalue()


def test_without_a_terminal_a_short_run_says_nothing(run, capsys):
    run(small(), 2)
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_long_run_says_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress_bar, "LINE_INTERVAL", 0.01)
    lines = Lines(working(seconds=30.0))
    lines.start()
    said, deadline = "", time.monotonic() + 60
    while not said and time.monotonic() < deadline:
        time.sleep(0.01)
        said = capsys.readouterr().err
    lines.stop()
    assert re.match(r"pfl: round 0 of 100, \S+ left; training: 00:\d\d left, 1 of 3 clients\n", said)


def test_an_error_gets_a_line_of_its_own(run, terminal):
    with pytest.raises(PflError, match="diverged"):
        run(small(local=LocalTraining(lr=1e30)), 9)
    assert terminal.getvalue().removesuffix("\x1b[?25h").endswith("\n")
