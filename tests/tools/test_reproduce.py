from typing import get_args

import pandas as pd
import pytest
import reproduce
from reproduction.claims import fact
from reproduction.runs import Item, Paper

from pfl_lightning.errors import PflError


def fail(place):
    raise PflError("data.root: no files")


@pytest.fixture
def asked(monkeypatch):
    """The places that the items of a made-up paper were asked for."""
    places = []

    def check(place):
        places.append(place)
        return [fact("it rises", "1", "2", place.pair != "b")]

    items = {"table": Item(check, ("a", "b"), ("a",)), "figure": Item(check, seeds=(9,)), "missing": Item(fail)}
    paper = Paper(items, {"small": [1], "full": [1, 2]}, lambda place: [f"--of={place.pair}"])
    monkeypatch.setitem(reproduce.PAPERS, "srpfl", paper)
    return places


def stopped(capsys, *words, **options):
    """The exit code, and what is said on stderr."""
    with pytest.raises(SystemExit) as stop:
        reproduce.reproduce(*words, **options)
    return stop.value.code, capsys.readouterr().err


def test_a_check_gets_the_folder_the_seeds_and_the_options_of_each_pair(asked, tmp_path, capsys):
    reproduce.reproduce("srpfl", "table", out=tmp_path)
    reproduce.reproduce("srpfl", "table", "full", pairs=["a"], out=tmp_path)
    reproduce.reproduce("srpfl", "figure", out=tmp_path, seeds=[4, 4])
    reproduce.reproduce("srpfl", "figure", out=tmp_path)
    names = ["srpfl-a-small", "srpfl-a-full", *["srpfl-figure-small"] * 2]
    assert [place.folder for place in asked] == [tmp_path / name for name in names]
    assert all(place.folder.is_dir() for place in asked)
    assert [place.seeds for place in asked] == [[1], [1, 2], [4], [9]]
    assert [place.options for place in asked] == [["--of=a"], ["--of=a"], (), ()]
    assert "a: it rises" in capsys.readouterr().out


def test_one_row_per_claim_is_written_and_a_claim_that_fails_is_told_by_the_exit_code(asked, tmp_path, capsys):
    words, csv = ("srpfl", "table", "full"), tmp_path / "claims.csv"
    assert stopped(capsys, *words, out=tmp_path, csv=csv, seeds=[1, 2]) == (1, "")
    rows = pd.read_csv(csv)
    assert rows.verdict.tolist() == ["holds", "fails"]
    first = rows.iloc[0]
    assert (first.claim, first.measured, first.expected, first.scale) == ("a: it rises", 1, 2, "full")
    assert first.command == "python tools/reproduce.py srpfl table --scale full '--seeds=[1,2]' --root DIR"
    assert first.commit


def test_the_commit_is_the_one_with_which_the_runs_began(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "commit", lambda: f"after {len(asked)}")
    reproduce.reproduce("srpfl", "table", out=tmp_path, csv=tmp_path / "claims.csv")
    assert pd.read_csv(tmp_path / "claims.csv").commit.tolist() == ["after 0"]


@pytest.mark.parametrize(
    ("words", "options", "line"),
    [
        (("delta_fl", "fig4"), {}, "item: fig4 is not possible for delta_fl; allowed: table1, table2"),
        (("srpfl", "rates", "full"), {}, "scale: full is not possible for rates; allowed: small"),
        (
            ("delta_fl", "fig17"),
            {"pairs": ["shakespeare_rnn"]},
            "pairs: shakespeare_rnn is not possible for fig17 at small scale; allowed: femnist_linear, sent140_linear",
        ),
        (("fedmac", "fig1"), {"pairs": ["mnist_mlr"]}, "allowed: none"),
        (("deprl", "table1"), {"pairs": ["harbox"]}, "pairs: harbox is not possible for table1 at small scale"),
        (("deprl", "table9"), {"pairs": ["cifar10"]}, "allowed: fashion_mnist"),
    ],
)
def test_what_a_paper_does_not_have_gets_one_line_and_leaves_nothing(words, options, line, tmp_path, capsys):
    code, said = stopped(capsys, *words, out=tmp_path, **options)
    assert (code, said.count("\n")) == (2, 1)
    assert line in said
    assert not list(tmp_path.iterdir())


def test_missing_files_are_said_in_one_line(asked, tmp_path, capsys):
    assert stopped(capsys, "srpfl", "missing", out=tmp_path) == (2, "reproduce: error: data.root: no files\n")


def test_every_paper_can_be_asked_for():
    assert get_args(reproduce.reproduce.__annotations__["paper"]) == tuple(reproduce.PAPERS)
