import csv
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_lightning.callbacks.round_csv import RoundCsv
from pfl_lightning.errors import PflError


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


ROWS = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "1.5", "x,y", '"']), min_size=1), max_size=3
)


def write_all(path, rounds):
    """Write rounds with a table, and return the rows that must be in the file."""
    table, expected = RoundCsv(path, first=("a",)), []
    for number, rows in rounds:
        table.write(number, rows)
        expected = [row for row in expected if int(row["round"]) < number]
        expected += [{"round": str(number), **row} for row in rows]
    return table, expected


def filled(rows, columns):
    return [{column: row.get(column, "") for column in columns} for row in rows]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 12), ROWS), min_size=1, max_size=12), st.integers(-1, 13))
def test_a_table_holds_the_last_version_of_every_round(tmp_path_factory, rounds, kept):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    table, expected = write_all(path, rounds)
    assert read(path) == filled(expected, table.columns)
    again = RoundCsv(path)
    again.cut(kept)
    assert read(path) == filled([row for row in expected if int(row["round"]) <= kept], table.columns)
    assert again.round == max((number for number in map(int, (row["round"] for row in read(path)))), default=None)


@given(st.lists(ROWS.filter(bool), min_size=2, max_size=5), st.data())
def test_a_table_that_a_kill_cuts_anywhere_continues_with_its_whole_lines(tmp_path_factory, rounds, data):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    table, expected = write_all(path, enumerate(rounds))
    header, *lines = path.read_bytes().splitlines(keepends=True)
    size = data.draw(st.integers(len(header), path.stat().st_size))
    os.truncate(path, size)
    whole = sum(size >= len(header) + sum(map(len, lines[: end + 1])) for end in range(len(lines)))
    RoundCsv(path).write(len(rounds), [{"a": "new"}])
    after = filled([*expected[:whole], {"round": str(len(rounds)), "a": "new"}], table.columns)
    assert read(path) == after


def test_only_new_columns_copy_the_file(tmp_path):
    table = RoundCsv(tmp_path / "t.csv", first=("loss", "accuracy"))
    table.write(0, [{"loss": 1}])
    file = table.path.stat().st_ino
    for number in range(1, 4):
        table.write(number, [{"loss": number}])
        table.write(number, [{"loss": number, "accuracy": 0.5}])
    assert table.path.stat().st_ino == file
    assert len(read(table.path)) == 4


def test_a_file_that_somebody_else_has_changed_is_read_again(tmp_path):
    table = RoundCsv(tmp_path / "t.csv")
    for number in range(3):
        table.write(number, [{"a": number}])
    table.path.write_text("round,a\r\n0,7\r\n")
    table.write(3, [{"a": 3}])
    assert [row["a"] for row in read(table.path)] == ["7", "3"]
    table.path.unlink()
    table.sync()
    table.write(4, [{"a": 4}])
    assert [row["a"] for row in read(table.path)] == ["4"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\x00" * 50, 1),
        (b"round,a", 1),
        (b"client,round\r\n1,2\r\n", 1),
        (b"round,a\r\n1,2\r\n1,2,3\r\n2,2\r\n", 3),
        (b"round,a\r\n2,2\r\n1,2\r\n3,2\r\n", 3),
        (b"round,a\r\nx,2\r\n3,2\r\n", 2),
    ],
)
def test_a_damaged_table_is_refused_and_kept(content, line, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(PflError, match=f"t.csv': line {line} is damaged; restore the table of this run"):
        RoundCsv(path).write(5, [{"a": 1}])
    assert path.read_bytes() == content
