"""Runs the pages of docs/own and docs/methods: Python blocks, and lines that begin with pfl, in the page's order."""

import re
import shlex
from pathlib import Path

import pytest

from pfl_lightning.cli import main

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
METHODS = sorted((DOCS / "methods").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", [*sorted((DOCS / "own").glob("*.md")), *METHODS], ids=lambda page: page.stem)
def test_every_block_of_a_page_runs_in_its_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(DOCS / "own")
    names: dict[str, object] = {}
    blocks = BLOCK.findall(page.read_text())
    assert blocks, "a page shows how something is done"
    for language, text in blocks:
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
        for line in re.sub(r"\\\n", " ", text).splitlines():
            if not language and line.startswith("pfl "):
                words = shlex.split(line, comments=True)[1:]
                run(shortened(words) if page in METHODS else words)


def shortened(words: list[str]) -> list[str]:
    """One round of a run, and the settings alone of one whose data are not there."""
    if "DIR" in words:
        return [*words, "--print_config"]
    return [*words, "--trainer.max_steps=1"] if words[0] == "fit" and "--model.help" not in words else words


def run(words: list[str]) -> None:
    """A command; one that shows something and does nothing ends the program."""
    if not {"--print_config", "--model.help"} & set(words):
        main(words)
        return
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code
