import pandas as pd
import pytest
import reproduce
from reproduction.claims import FAILS, HOLDS, Claim
from reproduction.items import papers
from reproduction.runs import Place

from pfl_lightning.errors import PflError


@pytest.fixture
def asked(monkeypatch):
    """The parts that are checked, none of which is run; there is a claim about each, which fails for the second."""
    parts = []

    def check(found):
        parts.extend(found)
        return [
            Claim(f"{part.title}: it rises", "1", "2", FAILS if number else HOLDS) for number, part in enumerate(parts)
        ]

    monkeypatch.setattr(reproduce, "check", check)
    return parts


def stopped(capsys, *words, **options):
    """The exit code, and what is said on stderr."""
    with pytest.raises(SystemExit) as stop:
        reproduce.reproduce(*words, **options)
    return stop.value.code, capsys.readouterr().err


def test_a_check_gets_the_folder_the_seeds_and_the_options_of_each_pair(asked, tmp_path, capsys):
    stopped(capsys, "fedmac", "table2", out=tmp_path)
    asked_first = [part.place for part in asked]
    asked.clear()
    reproduce.reproduce("delta_fl", "search", "full", pairs=["sent140_rnn"], out=tmp_path)
    (searched,) = asked
    asked.clear()
    reproduce.reproduce("fedmac", "fig1", out=tmp_path, seeds=[4, 4])
    names = ["mnist_mlr", "fashion_mnist_mlr", "synthetic_mlr"]
    assert [place.folder for place in asked_first] == [tmp_path / f"fedmac-{name}-small" for name in names]
    assert {tuple(place.seeds) for place in asked_first} == {(1, 2, 3)}
    assert "--data.root=data/mnist" in asked_first[0].options
    assert (searched.place.folder.name, searched.place.seeds) == ("delta_fl-sent140_rnn-full", [1])
    assert [part.place for part in asked] == [Place(tmp_path / "fedmac-fig1-small", [4], 1, [])]


def test_one_row_per_claim_is_written_and_a_claim_that_fails_is_told_by_the_exit_code(asked, tmp_path, capsys):
    csv = tmp_path / "claims.csv"
    pairs = ["femnist_linear", "sent140_linear"]
    code, said = stopped(capsys, "delta_fl", "fig17", "full", pairs=pairs, out=tmp_path, csv=csv, seeds=[1, 2])
    assert (code, said) == (1, "")
    rows = pd.read_csv(csv)
    assert rows.verdict.tolist() == ["holds", "fails"]
    first = rows.iloc[0]
    assert (first.claim, first.measured, first.expected, first.scale) == ("femnist_linear: it rises", 1, 2, "full")
    told = "'--pairs=[femnist_linear,sent140_linear]' '--seeds=[1,2]'"
    assert first.command == f"python tools/reproduce.py delta_fl fig17 --scale full {told} --root DIR"
    assert first.commit


def test_the_commit_is_the_one_with_which_the_runs_began(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "commit", lambda: f"after {len(asked)}")
    reproduce.reproduce("fedmac", "fig1", out=tmp_path, csv=tmp_path / "claims.csv")
    assert pd.read_csv(tmp_path / "claims.csv").commit.tolist() == ["after 0"]


@pytest.mark.parametrize(
    ("words", "options", "line"),
    [
        (("delta_fl", "fig5"), {}, "item: fig5 is not possible for delta_fl; allowed: algorithm3, fig16, fig17"),
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


def test_missing_files_are_said_in_one_line(monkeypatch, tmp_path, capsys):
    def fail(parts):
        raise PflError("data.root: no files")

    monkeypatch.setattr(reproduce, "check", fail)
    assert stopped(capsys, "srpfl", "fig3", out=tmp_path) == (2, "reproduce: error: data.root: no files\n")


def test_a_paper_is_one_that_the_help_names(tmp_path, capsys):
    code, said = stopped(capsys, "fedrep", "fig1", out=tmp_path)
    assert (code, f"allowed: {', '.join(papers())}" in said) == (2, True)
    assert all(paper in reproduce.reproduce.__doc__ for paper in papers())
