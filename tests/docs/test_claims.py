"""The page of all claims, the README's table and those of other libraries are what docs/evidence/results gives."""

import claims_page
import pandas as pd
import pytest
from reproduction.claims import FAILS, VERDICTS, spread
from reproduction.items import items_of
from reproduction.tables import interval

TABLES = sorted((claims_page.RESULTS / "tables").glob("*.csv"))


@pytest.fixture(scope="module")
def rows():
    return claims_page.read()


@pytest.fixture(scope="module")
def tried():
    return claims_page.read_tried()


def test_the_page_and_the_readme_are_drawn_from_the_files(rows, tried):
    assert claims_page.page(rows, tried) == claims_page.PAGE.read_text(encoding="utf-8")
    text = claims_page.README.read_text(encoding="utf-8")
    assert claims_page.readme(text, rows) == text
    assert claims_page.summary(rows, "docs/evidence/") in text


def test_a_verdict_that_is_typed_by_hand_is_drawn_over(rows):
    text = claims_page.README.read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| [DePRL]"))
    typed = text.replace(row, "| [DePRL](docs/evidence/deprl.md) | all | none | none |")
    assert typed != text
    assert claims_page.readme(typed, rows) == text


def test_every_claim_that_fails_says_what_was_tried_and_nothing_is_said_of_others(rows, tried):
    failing = rows[claims_page.counted(rows) & (rows.word == FAILS)]
    assert {claims_page.reason(row, tried) for row in failing.itertuples()} == {*tried}
    assert {each.cause for each in tried} <= {*claims_page.CAUSES}
    with pytest.raises(SystemExit, match="it lacks"):
        claims_page.reason(next(failing.itertuples()), [])


def test_orders_of_baselines_stand_by_themselves_and_are_not_counted(rows, tried):
    one = rows[claims_page.counted(rows)].iloc[[0]].assign(word=FAILS, baselines="True", claim="an order")
    page = claims_page.page(pd.concat([rows, one]), tried)
    assert claims_page.summary(pd.concat([rows, one])) == claims_page.summary(rows)
    assert "an order" in page.partition(claims_page.BASELINES)[2]
    assert "an order" not in page.partition(claims_page.BASELINES)[0]


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
