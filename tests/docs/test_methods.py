"""docs/methods has a page for every method and every file of its settings, citing as docs/evidence/papers.md."""

import inspect
import re
from pathlib import Path

import pytest

from pfl_lightning import methods

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs" / "methods").glob("*.md")}
OVERVIEW = PAGES.pop("index")
BASES = {methods.ClientLoop, methods.Method}  # of methods of one's own
CLASSES = [
    kind
    for kind in (getattr(methods, name) for name in methods.__all__)
    if inspect.isclass(kind) and issubclass(kind, methods.Method) and kind not in BASES
]
FILES = sorted(path.stem for path in (ROOT / "configs" / "methods").glob("*.yaml"))
ROW = re.compile(r"^\|[^|]+\|([^|]+)\|([^|]+)\|([^|]+)\| (arXiv:[\d.]+) \|$", re.MULTILINE)
PAPERS = {
    row[3]: [field.strip() for field in row[:3]] for row in ROW.findall((ROOT / "docs/evidence/papers.md").read_text())
}
CITATION = re.compile(r"([^\n.;]*?): \*([^*]+)\*,\s([^\[]+),\s\[(arXiv:[\d.]+)\]\(https://arxiv.org/abs/([\d.]+)\)")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_method_has_one_page_with_its_rule(kind):
    directive = f"::: {kind.__module__}.{kind.__name__}\n"
    assert sum(directive in page for page in PAGES.values()) == 1


@pytest.mark.parametrize("name", FILES)
def test_settings_are_shown_and_run_on_one_page_and_listed_on_the_overview(name):
    pages = [page for page in PAGES.values() if f'--8<-- "configs/methods/{name}.yaml"' in page]
    assert len(pages) == 1
    assert re.search(rf"pfl fit .*--config methods/{name}(?:\s|$)", pages[0], re.MULTILINE)
    assert re.search(rf"^\| \[.*`{name}`.*\|$", OVERVIEW, re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_linked_has_the_four_parts_and_cites_as_the_list_of_papers(name):
    page = PAGES[name]
    assert f"]({name}.md)" in OVERVIEW
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == ["Rule", "Paper", "Run it", "What held here"]
    citations = CITATION.findall(re.sub(r"(?<=\S)\n(?=\S)", " ", page))
    assert {paper for *_, paper, _ in citations} == set(re.findall(r"\[(arXiv:[\d.]+)\]", page))
    for authors, title, venue, paper, address in citations:
        assert [authors.strip().removeprefix("and "), title, venue] == PAPERS[paper]
        assert paper == f"arXiv:{address}"
