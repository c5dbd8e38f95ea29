"""What we cite can be found: papers by their arXiv ids, what we derived by the headings of our own pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAPERS = ROOT / "docs/evidence/papers.md"
BIBLIOGRAPHY = PAPERS.with_suffix(".bib")
FOLDERS = ("pfl_lightning", "configs", "docs", "tests", "tools")
FILES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".yaml", ".md"} and path != Path(__file__)
)
PAPER = r"(?<![-\w])(?:FedMac|DePRL|SRPFL|Delta-FL)"
# numbered sections of a specification that no reader has; sections of our own pages are cited by their names
UNKNOWN = re.compile(rf"\b[Ss]ections? \d|\b[Ss]pec(?:ification)?,? \d|\bspec,|{PAPER},? \d+\.\d|{PAPER} spec\b")
ARXIV = re.compile(r"arXiv:\d{4}\.\d{4,5}")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PAGE = re.compile(r"docs/([\w/]+)\.md, ([A-Z][-\w]*)")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_cites_a_numbered_section(path):
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    assert not [f"{number}: {line.strip()}" for number, line in lines if UNKNOWN.search(line)]


@pytest.mark.parametrize(
    "line",
    [
        "(SRPFL, section 2.8)",
        "sections 5.1 and 5.2",
        "# spec 13.6",
        "(FedMac, 11.3)",
        "SRPFL spec, section 7",
        "SRPFL 2.8",
    ],
)
def test_numbered_sections_are_recognised(line):
    assert UNKNOWN.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "the best is FedRep-SRPFL, 59.2",
        "(SRPFL, Theorem 4.9)",
        "(treespec, LeafSpec)",
        "docs/evidence/srpfl.md, The linear case",
    ],
)
def test_other_citations_are_not(line):
    assert not UNKNOWN.search(line)


def cited(pattern: re.Pattern[str], folders: tuple[str, ...]) -> set:
    """All matches in the files of some folders."""
    files = (path for path in FILES if path.relative_to(ROOT).parts[0] in folders)
    return {match for path in files for match in pattern.findall(path.read_text(encoding="utf-8"))}


def test_cited_papers_are_in_the_list():
    assert not cited(ARXIV, ("pfl_lightning", "configs")) - set(ARXIV.findall(PAPERS.read_text()))


def test_cited_headings_of_our_pages_exist():
    for page, word in cited(PAGE, FOLDERS):
        headings = HEADING.findall((ROOT / f"docs/{page}.md").read_text(encoding="utf-8"))
        assert any(heading.split()[0].rstrip(":") == word for heading in headings), f"docs/{page}.md has no {word}"


def entries(bibliography: str) -> list[dict[str, str]]:
    """The fields of each entry of a BibTeX file that has a line for each field."""
    return [dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE)) for entry in bibliography.split("\n@")[1:]]


def family(name: str) -> str:
    """The family name of an author as BibTeX has it, such as ``Smith`` of ``Smith, Virginia``."""
    return name.partition(",")[0].strip("{}")


def test_the_bibliography_has_the_listed_papers_with_their_authors_and_years():
    rows = re.findall(r"^\|(.+)\|$", PAPERS.read_text(encoding="utf-8"), re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    listed = {
        (title, authors, re.findall(r"\d{4}", venue)[0])
        for _, authors, title, venue, *_ in cells
        if authors != "authors" and "---" not in authors
    }
    in_bibliography = {
        (entry["title"].strip("{}"), ", ".join(map(family, entry["author"].split(" and "))), entry["year"])
        for entry in entries(BIBLIOGRAPHY.read_text(encoding="utf-8"))
    }
    assert len(listed) > 40
    assert in_bibliography == listed


def test_the_bibliography_has_the_arxiv_ids_of_the_listed_papers():
    listed = ARXIV.findall(PAPERS.read_text(encoding="utf-8"))
    bibliography = entries(BIBLIOGRAPHY.read_text(encoding="utf-8"))
    assert sorted(f"arXiv:{entry['eprint']}" for entry in bibliography if "eprint" in entry) == sorted(listed)
