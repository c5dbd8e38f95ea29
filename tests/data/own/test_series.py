"""Windows of series against slices of them, and the forecasts that need no training."""

import numpy as np
import pandas as pd
import pytest
import torch

from pfl_lightning.cli import main
from pfl_lightning.data import Series
from pfl_lightning.errors import PflError

WINDOW, HORIZON, SEASON = 5, 3, 4


def frame(lengths, **columns):
    """Series of numbers that are found only once, below a client each, and in no order."""
    rows = [
        {"site": f"site {client}", "time": time, "load": 100.0 * client + time, "wind": -100.0 * client - time}
        for client, length in enumerate(lengths)
        for time in range(length)
    ]
    return pd.DataFrame(rows).assign(**columns).sample(frac=1, random_state=0)


def series(table, **options):
    options = {"target": "load", "client": "site", "time": "time", "window": WINDOW, "horizon": HORIZON} | options
    return Series(table, standardize=False, **options)


def windows_of(data, split, client):
    """Inputs and targets of a client's samples in the order of time."""
    table = data.tables[split]
    places = table.flat[:-1].split(table.counts.tolist())[client].sort().values
    return table.samples.inputs[places], table.samples.targets[places]


def test_windows_are_slices_of_a_series_and_no_time_is_in_two_splits():
    data = series(frame([60, 45]), features=["wind"], test_fraction=0.2, val_fraction=0.2)
    data.setup()
    for client, name in enumerate(data.client_names):
        start = 100 * int(name.removeprefix("site "))
        times = {}
        for split in ("train", "val", "test"):
            inputs, targets = windows_of(data, split, client)
            first = inputs[0, 0, 0]
            expected = torch.arange(len(inputs))[:, None] + torch.arange(WINDOW + HORIZON) + first
            assert torch.equal(inputs[..., 0], expected[:, :WINDOW]), "one window after the other, none left out"
            assert torch.equal(targets, expected[:, WINDOW:])
            assert torch.equal(inputs[..., 1], -inputs[..., 0])
            times[split] = {*expected.flatten().tolist()}
        assert min(times["train"]) == start
        assert max(times["test"]) == start + {0: 59, 100: 44}[start]
        assert max(times["train"]) + 1 == min(times["val"])
        assert max(times["val"]) + 1 == min(times["test"])
    # a fifth of 60 - 7 and 45 - 7 windows
    assert sorted(data.tables["test"].counts.tolist()) == [8, 11]


def test_wide_and_long_tables_are_the_same_clients():
    table = frame([40, 40])
    long = series(table)
    wide = series(table.pivot(index="time", columns="site", values="load").reset_index(), target=None, client=None)
    for data in (long, wide):
        data.setup()
    assert long.client_names == wide.client_names
    for split in ("train", "test"):
        for one, other in zip(windows_of(long, split, 1), windows_of(wide, split, 1), strict=True):
            assert torch.equal(one, other)


def test_forecasts_without_training_are_the_last_value_that_of_a_season_ago_and_the_mean():
    data = series(frame([40, 30]), season=SEASON)
    data.setup()
    guesses = {name: values[data.tables["test"].flat[:-1]] for name, values in data.guesses().items()}
    places = data.tables["test"].flat[:-1]
    inputs, targets = data.tables["test"].samples.inputs[places, :, 0], data.tables["test"].samples.targets[places]
    assert torch.equal(guesses["last value"], inputs[:, -1:].expand(-1, HORIZON))
    assert torch.equal(guesses["last season"], targets - SEASON), "each number is one more than the one before"
    # the times of the training samples of both, 40 - 8 - 7 and 30 - 6 - 7 (a quarter of 33 and 23 windows is tested)
    assert {*guesses["mean"].flatten().tolist()} == {24 / 2, 100 + 16 / 2}


def test_each_clients_own_scale_is_that_of_its_times_before_the_test():
    data = series(frame([60, 45]), own_scale=True, val_fraction=0.0)
    data.setup()
    for client in range(2):
        inputs, targets = windows_of(data, "train", client)
        seen = torch.cat([inputs[0, :, 0], inputs[1:, -1, 0], targets[-1]])
        assert seen.mean().item() == pytest.approx(0, abs=1e-5)
        assert seen.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_several_targets_follow_time_by_time():
    data = series(frame([40]), target=["load", "wind"], num_clients=1)
    data.setup()
    inputs, targets = windows_of(data, "train", 0)
    assert torch.equal(targets.view(-1, HORIZON, 2)[:-1, 0], inputs[1:, -1])
    assert data.task.outputs == 2 * HORIZON


def test_the_summary_has_a_row_for_each_forecast_that_needs_no_training(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame([60, 45]).to_csv("load.csv", index=False)
    options = "--data.target load --data.client site --data.time time --data.window 5 --data.horizon 3 --data.season 4"
    words = f"fit --model FedAvg --data Series --data.file load.csv {options} --trainer.max_steps 1"
    main([*words.split(), "--data.own_scale", "false"])
    rows = {row.split("│")[1].strip(): row.split("│")[2:] for row in capsys.readouterr().out.splitlines() if "│" in row}
    # the last value is 1, 2 and 3 behind; the last season 4
    assert [float(cell) for cell in rows["last season"][:6]] == [4.0] * 6
    assert [float(cell) for cell in rows["last value"][:6]] == [pytest.approx((14 / 3) ** 0.5, abs=1e-4)] * 6


@pytest.mark.parametrize(
    ("table", "options", "line"),
    [
        (frame([40]), {"features": ["load"]}, "data: column 'load' must have one role of target, features, client and"),
        (frame([40]), {"client": None, "features": ["wind"]}, "data.features must be empty without data.client"),
        (frame([40]), {"target": None}, "data.target is required with data.client"),
        (frame([40]), {"season": 6}, "data.season must be at most data.window, 5, got 6"),
        (frame([15, 12]), {}, "data.window: 5 and data.horizon 3 need series of 16 times or more, got 15"),
        (frame([40], load="high"), {}, "data: column 'load' must be numbers, got 'high'"),
        (frame([40], wind=np.nan), {"features": ["wind"]}, "data.file: 'DataFrame' has no value of column 'wind' in"),
        (frame([40, 40]), {"client": None}, "data.time: a series has two lines of 0; data.client tells series apart"),
        (
            frame([40], time="01/02/2026"),
            {},
            "data.time: column 'time' must be numbers or dates such as 2026-01-31 18:30, ",
        ),
        (frame([40]), {"target": "heat"}, "data.file: 'DataFrame' has no column 'heat'"),
    ],
)
def test_what_is_no_series_gets_one_line(table, options, line):
    with pytest.raises(PflError, match=f"^{line}"):
        series(table, **options).load()


def test_dates_are_an_order():
    table = frame([40])
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(table["time"], unit="D")
    one, other = series(table), series(table.assign(time=days.dt.strftime("%Y-%m-%d")))
    for data in (one, other):
        data.setup()
    assert torch.equal(one.tables["train"].samples.inputs, other.tables["train"].samples.inputs)
