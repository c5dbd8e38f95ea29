"""Runs README and pages in the order of their blocks: Python, and the commands of blocks without a language.

``bash`` blocks are not run: they need a network, a cluster or hours. ``text`` is output. A Python block that begins
with the name of a file, such as ``# mine.py``, is also written to it. Clients have few samples, and runs few rounds.
For the pages of methods and questions only the settings are printed: ``cli/test_configs.py`` runs the methods' files.
"""

import re
import shlex
from glob import glob
from pathlib import Path
from typing import BinaryIO

import pytest
import yaml

from pfl_lightning.cli import main
from pfl_lightning.cli.execution import Sweep
from pfl_lightning.cli.planning import PlannedRun
from pfl_lightning.errors import PflError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOT_RUN = {DOCS / "guides/scale.md"}  # several processes and machines
FOLDERS = ("", "guides", "methods", "own")
PAGES = [ROOT / "README.md", *(page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md")))]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# (\w+\.py)\n")
ROUNDS = "--trainer.max_steps"
MOST = 3  # rounds of a run; 1 if it does not say how many
FEW = "--data.max_samples=30"
SETTINGS = ["--print_config"]


def commands(text: str) -> list[list[str]]:
    """The words of each ``pfl`` command of a block, without the shell's comments."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("pfl ")]


def runnable(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page that are run, with their languages."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(language, text) for language, text in blocks if language == "python" or (not language and commands(text))]


def shortened(words: list[str], page: Path) -> list[str]:
    """A command with few rounds and samples; of a method's page, or of data that are not here, its settings."""
    if words[0] not in ("fit", "sweep") or any("help" in word for word in words):
        return words
    if "DIR" in words or page.parent.name == "methods" or (page.stem == "faq" and words[0] == "fit"):
        return [*words, *SETTINGS]
    if ROUNDS in words:
        at = words.index(ROUNDS) + 1
        words = [*words[:at], str(min(int(words[at]), MOST)), *words[at + 1 :]]
    elif words[0] == "fit" and "--rounds" not in words:
        words = [*words, ROUNDS, "1"]
    return words if any(word.startswith("--data.max_samples") for word in words) else [*words, FEW]


def run(words: list[str], page: Path) -> None:
    """Run a page's ``pfl`` with the words that a shell would give it."""
    arguments = [path for word in words for path in (("*" in word and sorted(glob(word))) or [word])]
    try:
        main(shortened(arguments, page))
    except SystemExit as end:  # of help and of printed settings
        if end.code:
            raise


def run_here(sweep: Sweep, run: PlannedRun, args: list[str], stderr: BinaryIO) -> None:
    """A run of a sweep without the seconds that a process takes to start."""
    try:
        main(["fit", *run.args, *args])
    except SystemExit as end:
        raise PflError("see stderr") from end


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in NOT_RUN and runnable(page)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_block_of_a_page_runs_in_its_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Sweep, "fit", run_here)
    monkeypatch.setattr(Sweep, "execute_all", lambda sweep, runs: [sweep.execute(run) for run in runs])
    monkeypatch.syspath_prepend(DOCS / "own")
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    for language, text in runnable(page):
        if file := FILE.match(text):
            (tmp_path / file[1]).write_text(text)
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
        else:
            for words in commands(text):
                run(words, page)


def test_only_commands_of_blocks_without_a_language_are_run(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```\npfl fit --model A \\\n    --data B   # why\nRun folder: runs\n```\n```bash\npfl fit\n```\n")
    ((_, text),) = runnable(page)
    assert commands(text) == [["fit", "--model", "A", "--data", "B"]]


LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")


def test_every_link_of_the_readme_leads_to_a_file():
    links = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_readme_is_short_and_says_how_to_resume_write_a_method_and_bring_data_and_what_held():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 160
    assert [line for _, block in BLOCK.findall(text) for line in block.splitlines() if len(line) > 88] == []
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    wanted = ("Stop and resume", "Write your own method", "Your own data", "What the papers claim, and what held here")
    assert [title for title in wanted if not any(heading.startswith(title) for heading in headings)] == []


def test_no_list_of_the_sites_navigation_is_long():
    def longest(entries):
        below = [pages for entry in entries if isinstance(entry, dict) for pages in entry.values()]
        return max([len(entries), *(longest(pages) for pages in below if isinstance(pages, list))])

    assert longest(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]) <= 12
