"""Builds the documentation site as mkdocs.yml says, and looks at what comes out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = re.compile(r"""<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="https?:""")
CLOSED = "http://127.0.0.1:9"  # a port that nobody serves: whatever is fetched fails

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the site needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    paths = {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1", "HTTP_PROXY": CLOSED, "HTTPS_PROXY": CLOSED}
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert not {page.relative_to(site) for page in pages if ELSEWHERE.search(page.read_text(encoding="utf-8"))}
