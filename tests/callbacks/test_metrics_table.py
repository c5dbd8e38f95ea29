"""What is logged of a round after its line is written is added to the line."""

import csv

from pfl_lightning.callbacks import MetricsTable
from pfl_lightning.callbacks.round_csv import RoundCsv


def test_the_last_numbers_of_a_table_are_those_that_were_written(tmp_path):
    table = RoundCsv(tmp_path / "table.csv", first=("a",))
    assert table.numbers() == {}
    table.write(1, [{"a": 0.1 + 0.2, "b": 1e-300}])
    table.write(2, [{"b": 3.0}])
    continued = RoundCsv(tmp_path / "table.csv")
    continued.read(1)
    assert continued.numbers() == {"a": 0.1 + 0.2, "b": 1e-300}
    continued.read(2)
    assert continued.numbers() == {"b": 3.0}


def test_a_value_of_a_round_is_added_to_those_that_were_logged_before(tmp_path):
    table = MetricsTable(tmp_path)
    table.log_metrics({"train/loss": 2.0}, 1)
    table.log_metrics({"lr-SGD": 1.0}, 1)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["train/loss"], row["lr-SGD"]) == ("2.0", "1.0")
