"""The page of all claims, the README's table and those of other libraries are what docs/evidence/results gives."""

import claims_page
import pandas as pd
import pytest
from reproduction.claims import VERDICTS, spread
from reproduction.items import items_of
from reproduction.tables import interval

TABLES = sorted((claims_page.RESULTS / "tables").glob("*.csv"))


@pytest.fixture(scope="module")
def rows():
    return claims_page.read()


def test_the_page_and_the_readme_are_drawn_from_the_files(rows):
    assert claims_page.page(rows, claims_page.read_tried()) == claims_page.PAGE.read_text(encoding="utf-8")
    text = claims_page.README.read_text(encoding="utf-8")
    assert claims_page.readme(text, rows) == text
    assert claims_page.summary(rows, "docs/evidence/") in text


def test_a_verdict_that_is_typed_by_hand_is_drawn_over(rows):
    text = claims_page.README.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| [DePRL]"))
    typed = text.replace(row, "| [DePRL](docs/evidence/deprl.md) | all | none | none |")
    assert typed != text
    assert claims_page.readme(typed, rows) == text


def test_every_row_has_a_verdict_a_commit_and_a_command_of_an_item(rows):
    assert set(rows.word) <= {*VERDICTS}
    assert rows["commit"].str.fullmatch("[0-9a-f]{7,}").all()  # of a checkout without changes
    for row in rows.itertuples():
        assert row.item in items_of(row.paper)
        assert row.command.startswith(f"python tools/reproduce.py {row.paper} {row.item} --scale {row.scale} ")


def test_a_long_command_fits_its_page():
    long = f"python tools/reproduce.py {'x' * 60} --root DIR"
    assert claims_page.wrapped(long).splitlines() == [f"{long[: -len(' --root DIR')]} \\", "    --root DIR"]
    assert claims_page.wrapped("python tools/reproduce.py a b --root DIR") == "python tools/reproduce.py a b --root DIR"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_beside_published_numbers_is_that_of_its_file(path):
    lines = (claims_page.EVIDENCE / "baselines.md").read_text(encoding="utf-8").splitlines()
    columns = ["best", "last", "mean", "worst"]
    scores = {name: rows[columns].to_numpy().T for name, rows in pd.read_csv(path).groupby("method")}
    local = scores["Local"]
    for name, (best, last, mean, worst) in scores.items():
        cells = " | ".join(map(spread, (best, last, mean, worst)))
        assert [line for line in lines if line.startswith(f"| {name} |") and line.endswith(f"| {cells} |")]
        if name != "Local":
            assert f"| {name} | {interval(last - local[1])} | {interval(mean - local[2])} |" in lines
