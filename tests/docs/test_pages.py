"""Runs the pages of docs/own, and that of the command line, in the order of the page.

That is: their Python blocks, and their lines that begin with pfl.
"""

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest

from pfl_lightning.cli import main

DOCS = Path(__file__).parents[2] / "docs"
OWN = DOCS / "own"
PAGES = [*sorted(OWN.glob("*.md")), DOCS / "guides" / "command_line.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
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
                run(shlex.split(line.partition(" | ")[0], comments=True)[1:])


def run(words):
    """Run a command, which may be one that ends by itself, such as help."""
    ends = "--print_config" in words or any(word.endswith((".help", "--help.all")) for word in words)
    with pytest.raises(SystemExit, match=r"^0$") if ends else nullcontext():
        main(words)
