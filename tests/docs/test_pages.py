"""Runs the pages of docs/own: their Python blocks, and their lines that begin with pfl, in the order of the page."""

import re
import shlex
from pathlib import Path

import pytest

from pfl_lightning.cli import main

OWN = Path(__file__).parents[2] / "docs" / "own"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(OWN.glob("*.md")), ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_in_its_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(OWN)
    names: dict[str, object] = {}
    blocks = BLOCK.findall(page.read_text())
    assert blocks, "a page shows how something is done"
    for language, text in blocks:
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
        for line in re.sub(r"\\\n", " ", text).splitlines():
            if not language and line.startswith("pfl "):
                main(shlex.split(line, comments=True)[1:])
