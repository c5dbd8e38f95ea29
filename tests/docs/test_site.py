"""Builds the documentation site as mkdocs.yml says, and looks at what comes out."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]
ELSEWHERE = re.compile(r"""<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="https?:""")
BLOCK = re.compile(r"<pre\b[^>]*>(.*?)</pre>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
WIDTH = 88  # columns of code that fit on a page of 1,280 pixels
CLOSED = "http://127.0.0.1:9"  # a port that nobody serves: whatever is fetched fails

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory, worker_id):
    """The folder of the site, which the first of the worker processes builds."""
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "site"
    with FileLock(f"{folder}.lock"):
        if not (folder / "404.html").is_file():
            build(folder)
    return folder


def build(folder):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    paths = {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1", "HTTP_PROXY": CLOSED, "HTTPS_PROXY": CLOSED}
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert not {page.relative_to(site) for page in pages if ELSEWHERE.search(page.read_text(encoding="utf-8"))}


def test_pages_of_methods_have_the_numbers_of_the_suite(site):
    pages = [page.read_text(encoding="utf-8") for page in site.glob("methods/*/index.html")]
    shown = [page for page in pages if "In the suite" in page and "data:image/svg+xml" in page]
    assert all("<td>Local</td>" in page for page in shown)
    assert sum(page.count("<td>Local</td>") > 1 for page in shown) > 50  # a table for each data set


def test_no_line_of_code_is_wider_than_its_page(site):
    blocks = [
        (page.parent.name, html.unescape(TAG.sub("", block)))
        for page in site.rglob("*.html")
        for block in BLOCK.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(blocks) > 400
    assert [(page, line) for page, block in blocks for line in block.splitlines() if len(line) > WIDTH] == []


def test_the_search_finds_the_parts_of_paths_but_whole_names_and_has_no_prompts_of_notebooks(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    words = re.split(index["config"]["separator"], "--model.local.lr=1.5 torch.optim.Adam <b>FedAdam</b> eval_epochs")
    assert {"model", "lr", "1.5", "Adam", "FedAdam", "eval_epochs"} <= {*words}
    assert [entry["location"] for entry in index["docs"] if re.search(r"(In|Out) ?\[\d*\]:", entry["text"])] == []
