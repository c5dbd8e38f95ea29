import pytest
import torch
from projection import projection, seconds_over

EQUAL = torch.ones(100)


def test_computing_ends_with_the_largest_share():
    assert seconds_over(4, EQUAL, 8.0, 0, 0, 1, 0) == (pytest.approx(2.0), 0)
    assert seconds_over(64, EQUAL, 8.0, 0, 0, 1, 0)[0] == pytest.approx(0.16)  # two clients of 100
    assert seconds_over(2, torch.tensor([3.0, 1, 1]), 10.0, 0, 0, 1, 0)[0] == pytest.approx(6.0)


def test_messages_are_sums_in_float64_and_rows_both_ways():
    # 2 * 1/2 * (2 * 10 MB) = 20 MB of sums, 2 * 1/2 * 50 rows of 0.2 MB = 10 MB: 30 MB at 1 GB a second
    assert seconds_over(2, EQUAL, 1.0, 10, 0.2, 8, 0)[1] == pytest.approx(0.03)
    assert seconds_over(1024, EQUAL, 1.0, 0, 0, 8, 1e-4)[1] == pytest.approx(8e-3)


def test_the_table_begins_with_one_process(capsys):
    projection(seconds=2.0, most=4)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["1", "2", "4"]
    assert lines[2] == "| 1 | 2 | 0 | 2 | 1 |"
