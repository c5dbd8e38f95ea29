import io
import re
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from pfl_lightning.callbacks import CostNote, RoundProgressBar, progress
from pfl_lightning.callbacks.progress import View
from pfl_lightning.data.progress import clock
from pfl_lightning.errors import PflError
from pfl_lightning.methods import FedAvg, FedRep
from pfl_lightning.models import MLP

COUNTS = torch.tensor([60, 30, 10])
small = partial(FedAvg, network=partial(MLP, hidden=(8, 5)))


@pytest.fixture
def terminal(monkeypatch):
    """What a terminal of 80 columns shows."""
    shown = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=shown, force_terminal=True, width=80))
    return shown


def drawn(view, width=80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(view)
    return console.file.getvalue().splitlines()


def working(doing="training", seconds=10.0, rounds=100):
    """A view of a method that has been at work for so many seconds."""
    method = small()
    view = View(method, rounds)
    view.begun = view.trained = time.monotonic() - seconds
    method.progress.begin(doing, COUNTS)
    method.progress.since = time.monotonic() - seconds
    return view, method.progress


def test_samples_and_clients_move_the_bar_inside_a_round():
    view, work = working()
    shares = []
    for step in (lambda: work.add(15), lambda: work.add(15), lambda: work.reach(1), lambda: work.reach(2)):
        step()
        shares.append(re.search(r"[\d.]+%", drawn(view)[1])[0])
    assert shares == ["15.0%", "30.0%", "60.0%", "100.0%"]  # 60 of 100 samples belong to the first client


def test_the_time_left_is_in_proportion_to_the_work_left():
    view, work = working(seconds=30.0)
    work.reach(1)
    assert work.seconds_left == pytest.approx(20.0, rel=0.01)  # 60 % took 30 seconds
    assert view.seconds_left == pytest.approx(30.0 * 99.4 / 0.6, rel=0.01)
    assert "00:20 left, 1 of 3 clients" in drawn(view)[1]


def test_brief_work_has_no_line():
    view, _ = working(seconds=0.5)
    assert len(drawn(view)) == 1


def test_an_evaluation_shows_its_progress_and_completes_no_round():
    view, work = working("evaluating")
    work.reach(1)
    first, second = drawn(view)
    assert first.startswith("Round 0/100")
    assert "left" not in first
    assert second.startswith("Evaluating")
    assert "1 of 3 clients, 60.0%" in second


@pytest.mark.parametrize(
    ("width", "rounds", "work"),
    [
        (40, "00:05 left", "00:06 left"),
        (60, "00:05 left, loss 0.01235", "00:06 left, 1 of 3 clients, 60.0%"),
        (80, "00:05 left, loss 0.01235, simulated 73.3 s, 20 clients", "00:06 left, 1 of 3 clients, 60.0%"),
        (200, "00:05 left, loss 0.01235, simulated 73.3 s, 20 clients", "00:06 left, 1 of 3 clients, 60.0%"),
    ],
)
def test_a_narrow_line_leaves_out_words_and_keeps_the_bar(width, rounds, work):
    view, progress = working(rounds=15)
    found = {"train/loss": 0.012345678, "system/cohort": 20, "time/total": 73.3}
    view.take(SimpleNamespace(global_step=15, progress_bar_metrics=found))
    view.method.accounting.clock.rounds = 9
    progress.reach(1)
    progress.since = time.monotonic() - 10.0
    lines = drawn(view, width)
    assert [len(line) for line in lines] == [width, width]
    assert lines[0].endswith(rounds)
    assert lines[1].endswith(work)
    assert len(lines[0].removesuffix(rounds).removeprefix("Round 9/15")) >= 10 + 2
    assert len(lines[1].removesuffix(work).removeprefix("Training")) >= 10 + 2


def test_the_longest_lines_fit_80_columns():
    view, work = working("evaluating", seconds=400_000.0, rounds=20_000)
    view.method.accounting.clock.rounds = 19_999
    found = {"train/loss": 0.012345678, "system/cohort": 100_000, "time/total": 1.23456e12}
    view.take(SimpleNamespace(global_step=20_000, progress_bar_metrics=found))
    work.begin("evaluating", torch.ones(100_000))
    work.since = time.monotonic() - 400_000.0
    work.add(3)
    lines = drawn(view)
    assert len(lines) == 2
    assert all(len(line) <= 80 for line in lines)
    assert "0 of 100,000 clients" in lines[1]
    assert "loss 0.01235" in lines[0]


def test_a_run_leaves_its_last_round_on_the_terminal(ragged_data, fit, terminal):
    fit(small(), ragged_data(), 2, enable_progress_bar=True, callbacks=[RoundProgressBar()])
    assert "Round 2/2" in terminal.getvalue()
    assert "6 clients" in terminal.getvalue()


def test_without_a_terminal_a_short_run_says_nothing(ragged_data, fit, capsys):
    fit(small(), ragged_data(), 2, enable_progress_bar=True, callbacks=[RoundProgressBar()])
    assert capsys.readouterr().err == ""


def test_without_a_terminal_a_long_run_says_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SAID_EVERY", 0.01)
    view, work = working(seconds=30.0)
    work.reach(1)
    lines = progress.Lines(view)
    lines.start()
    while not (said := capsys.readouterr().err):
        time.sleep(0.01)
    lines.stop()
    assert re.match(r"pfl: round 0 of 100, \S+ left; training: 00:\d\d left, 1 of 3 clients, 60.0%\n", said)


def test_an_error_gets_a_line_of_its_own(ragged_data, fit, terminal):
    with pytest.raises(PflError, match="diverged"):
        fit(small(lr=1e30), ragged_data(), 9, enable_progress_bar=True, callbacks=[RoundProgressBar()])
    assert terminal.getvalue().removesuffix("\x1b[?25h").endswith("\n")


def test_a_clock_counts_hours_and_days():
    assert [clock(seconds) for seconds in (0.9, 61, 3600, 90_000)] == ["00:00", "01:01", "1:00:00", "1 day, 1:00:00"]


@pytest.mark.parametrize(("above", "appears"), [(0, True), (1, False)])
def test_a_note_says_what_a_large_round_costs(above, appears, ragged_data, fit, monkeypatch, capsys):
    data = ragged_data()
    data.setup()
    counts = data.tables["train"].counts
    # each repetition: 2 epochs on the head and 1 on the body, which is frozen in the former
    steps, passes = 3 * 2 * int((counts + 3).div(4, rounding_mode="floor").sum()), 2 * (2 + 1 + 1)
    monkeypatch.setattr("pfl_lightning.callbacks.cost_note.STEPS", steps + above)
    method = FedRep(network=partial(MLP, hidden=(8, 5)), head_epochs=2, epochs=2, batch_size=4)
    fit(method, data, 1, callbacks=[CostNote()])
    said = capsys.readouterr().err
    assert appears == (f"trains 6 clients in {steps:,} steps on {passes * int(counts.sum()):,} samples" in said)
    assert said.count("\n") == appears


def test_a_small_round_costs_no_line(ragged_data, fit, capsys):
    fit(small(), ragged_data(), 1, callbacks=[CostNote()])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("max_samples", [None, 2, 1000])
def test_a_note_says_how_many_samples_a_limit_leaves_out(max_samples, ragged_data, fit, capsys):
    data = ragged_data(max_samples=max_samples)
    fit(small(), data, 1, callbacks=[CostNote()])
    kept, there = sum(table.counts.sum() for table in data.tables.values()), len(data.tables["train"].samples.targets)
    line = f"pfl: note: data.max_samples: 2 keeps {kept} of {there} samples; null keeps all\n"
    assert capsys.readouterr().err == (line if max_samples == 2 else "")
