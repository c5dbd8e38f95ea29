import csv

from pfl_lightning.callbacks.round_csv import RoundCsv


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rounds_and_columns_add_up(tmp_path):
    table = RoundCsv(tmp_path / "t.csv", first=("time",))
    table.write(0, [{"loss": 1.5}])
    table.write(1, [{"time": 2, "accuracy": 0.5}, {"time": 3}])
    assert read(table.path) == [
        {"round": "0", "time": "", "loss": "1.5", "accuracy": ""},
        {"round": "1", "time": "2", "loss": "", "accuracy": "0.5"},
        {"round": "1", "time": "3", "loss": "", "accuracy": ""},
    ]


def test_writing_a_round_again_replaces_it(tmp_path):
    table = RoundCsv(tmp_path / "t.csv")
    for value in (1, 2):
        table.write(5, [{"loss": value}])
    assert read(table.path) == [{"round": "5", "loss": "2"}]


def test_a_resumed_run_cuts_the_file_back(tmp_path):
    for rounds, value in ((range(6), "first"), (range(3, 5), "resumed")):
        table = RoundCsv(tmp_path / "t.csv")
        for round_index in rounds:
            table.write(round_index, [{"run": value}])
    assert [(row["round"], row["run"]) for row in read(table.path)] == [
        ("0", "first"), ("1", "first"), ("2", "first"), ("3", "resumed"), ("4", "resumed"),
    ]  # fmt: skip


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path):
    table = RoundCsv(tmp_path / "t.csv")
    table.write(1, [{"a": 1, "b": 2}])
    with table.path.open("a") as file:
        file.write("2,3")
    again = RoundCsv(table.path)
    again.write(3, [{"a": 4, "b": 5}])
    assert [row["round"] for row in read(table.path)] == ["1", "3"]
