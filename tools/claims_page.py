"""Draws docs/evidence/claims.md, the README's table of claims and figures from the files in docs/evidence/results.

``python tools/reproduce.py PAPER ITEM ... --csv docs/evidence/results/NAME.csv`` makes such a file, and those of
docs/evidence/results/curves are written beside the figures of its runs; ``python tools/claims_page.py`` draws again.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from reproduction.claims import FAILS, OURS, VERDICTS
from reproduction.curves import kept
from reproduction.pictures import COMMUNICATION_TIMES

from pfl_lightning.report import save_figure, time_figure
from pfl_lightning.report.compare_figures import cost_figure
from pfl_lightning.report.measures import ROUNDS
from pfl_lightning.report.tables import Markup, markdown

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "docs/evidence"
PAGE = EVIDENCE / "claims.md"
RESULTS = EVIDENCE / "results"
TRIED = RESULTS / "tried.yaml"
README = ROOT / "README.md"
CURVES = sorted((RESULTS / "curves").glob("*.csv"))
PAPERS = {"srpfl": "SRPFL", "fedmac": "FedMac", "deprl": "DePRL", "delta_fl": "Delta-FL"}
README_TABLE = re.compile(r"^\| paper +\|.*\n(?:\|.*\n)+", re.MULTILINE)
INTRODUCTION = """# All claims

What four papers claim of their tables and figures, and what was measured here. Nothing on this page is typed by hand:
`python tools/claims_page.py` draws it from the files in `docs/evidence/results`, which `tools/reproduce.py ... --csv`
writes, and figures from the curves in `docs/evidence/results/curves`, which it writes beside those of the runs. What
has no file there has not been decided by this rule; the papers' pages have it. Rows that say *our own check* are not
claims of a paper, but of a simulation or a closed form of ours, or, in Delta-FL's Table 2, of other test devices than
those at hand (95 % intervals of draws of devices and seeds), and are not counted.

A claim about runs is decided by the differences between runs of the same seeds. It *holds* if the 95 % t-interval of
the mean difference is on the claimed side of 0, or of the margin that it names; it *fails* if the interval is on the
other side, or if a run never reaches what is compared. Otherwise it is *inconclusive*, and the number of seeds is
that with which the same mean and spread would tell. A claim of several differences holds if all do, and fails if one
does, by intervals that are wider for their number (Bonferroni's), since one of many can be off by chance. A claim
that one of several is better holds if one is, by such intervals, and fails if none can be. What is computed without
seeds holds or fails.

Seeds differ in first weights, participants and batches, and in DePRL's random graphs; the split among the clients and
their speeds are the same, so that a verdict is about one split.

The table counts rows, and some are of the same runs or of one claim: FedMac's Table 4 stands here for three weights of
the penalty, its Tables 1 and 2 on MNIST also with rates that were searched, all of its Figure 4 is of Table 1's runs,
and some of DePRL's and SRPFL's claims stand here at two scales.

Measurements are means ± sample standard deviations over the seeds. `small` has few clients and rounds, `two_cores` has
the papers' numbers of clients and rounds (SRPFL's Figures 3 and 5: 150 rounds instead of 100), and otherwise what two
cores can bear, `full` all settings of the paper that are known. Some files at hand have less than the published ones:
Fashion-MNIST 68,000 of 70,000 images, CIFAR-10 12,000 of 60,000, FEMNIST 150 of its 3,550 writers. A commit is that of
the last command; runs that it found finished can be older.
"""

CAUSES = {
    "paper": "by what the paper says itself",
    "experiment": "since our data, network or size are others",
    "open": "with what was tried, which says nothing of others",
}
BASELINES = """## Orders of baselines

Tables of the papers have these orders, of methods that they compare with, over graphs and concentrations; no sentence
of theirs claims them, and they are not counted.
"""


class Tried(NamedTuple):
    """What was tried against claims that fail.

    Attributes:
        paper: Their paper.
        item: Pattern of their tables or figures.
        claim: Pattern of their sentences.
        cause: One of ``CAUSES``.
        tried: What was tried against it, or that nothing was.
        scale: Pattern of their scales.
    """

    paper: str
    item: str
    claim: str
    cause: str
    tried: str
    scale: str = "*"

    def of(self, row: Any) -> bool:
        """Whether a claim is one of them."""
        patterns = {"paper": self.paper, "item": self.item, "claim": self.claim, "scale": self.scale}
        return all(fnmatchcase(getattr(row, key), pattern) for key, pattern in patterns.items())


def read_tried() -> list[Tried]:
    """What was tried against all claims that fail."""
    return [Tried(**entry) for entry in yaml.safe_load(TRIED.read_text())]


def read() -> pd.DataFrame:
    """All claims, one a row."""
    files = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in sorted(RESULTS.glob("*.csv"))]
    rows = pd.concat(files, ignore_index=True).fillna({"baselines": "False"})
    if unknown := {*rows.paper} - {*PAPERS}:
        raise SystemExit(f"claims_page: paper: {unknown.pop()} is not possible; allowed: {', '.join(PAPERS)}")
    return rows.assign(word=rows.verdict.str.partition(";")[0])


def counted(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows are claims of a paper."""
    return (rows.printed != OURS) & (rows.baselines != str(True))


def summary(rows: pd.DataFrame, folder: str = "") -> str:
    """How many claims of each paper have each verdict; checks of our own and orders of baselines are left out.

    Args:
        rows: The claims.
        folder: Where the papers' pages are.
    """
    counts = rows[counted(rows)].value_counts(["paper", "word"])
    cells = [
        [Markup(f"[{name}]({folder}{paper}.md)"), *(str(counts.get((paper, word), 0)) for word in VERDICTS)]
        for paper, name in PAPERS.items()
    ]
    return markdown("", ["paper", *VERDICTS], cells).strip() + "\n"


def page(rows: pd.DataFrame, tried: Sequence[Tried]) -> str:
    """The page of all claims, and of orders of baselines."""
    orders = rows.baselines == str(True)
    return "\n".join(
        [
            INTRODUCTION,
            summary(rows),
            causes(rows, tried),
            *sections(rows[~orders], tried),
            BASELINES,
            *sections(rows[orders], tried, level="###"),
        ]
    )


def sections(rows: pd.DataFrame, tried: Sequence[Tried], level: str = "##") -> Iterator[str]:
    """A section for each paper, and in it a table for each of its tables and figures."""
    for paper, name in PAPERS.items():
        own = rows[rows.paper == paper]
        if own.empty:
            continue
        yield f"{level} {name}\n"
        for (item, scale, commit, command), found in own.groupby(["item", "scale", "commit", "command"], sort=False):
            columns = ["claim", "measured", "expected", "printed", "verdict"]
            table = markdown("", [*columns[:3], "in the paper", "verdict"], found[columns].values.tolist()).strip()
            reasons = "".join(f"- {text}\n" for text in dict.fromkeys(reasons_of(found[counted(found)], tried)))
            yield f"{level}# {name}, {item}, {scale}\n\nCommit {commit}:\n\n```\n{wrapped(command)}\n```\n\n{table}\n"
            if reasons:
                yield f"What fails:\n\n{reasons}"


def reasons_of(rows: pd.DataFrame, tried: Sequence[Tried]) -> Iterator[str]:
    """The cause of each claim that fails, and what was tried against it."""
    for row in rows[rows.word == FAILS].itertuples():
        found = reason(row, tried)
        yield f"*{found.cause}*: {found.tried}"


def reason(row: Any, tried: Sequence[Tried]) -> Tried:
    """What was tried against a claim that fails: the first that is said of it.

    Raises:
        SystemExit: If nothing is said of it.
    """
    for each in tried:
        if each.of(row):
            return each
    raise SystemExit(f"claims_page: {TRIED.name}: it lacks {row.paper} {row.item} {row.scale}: {row.claim}")


def causes(rows: pd.DataFrame, tried: Sequence[Tried]) -> str:
    """How many claims fail by which cause."""
    failing = rows[counted(rows) & (rows.word == FAILS)]
    found = Counter(reason(row, tried).cause for row in failing.itertuples())
    parts = ", ".join(f"{found[cause]} {text} (*{cause}*)" for cause, text in CAUSES.items())
    return f"Of the {len(failing)} that fail, {parts}; what was tried stands below each table.\n"


def wrapped(command: str) -> str:
    """A command on several lines, if it is too long for a page."""
    lines = textwrap.wrap(command, 86, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return command if len(command) <= 88 else " \\\n".join(lines)


def readme(text: str, rows: pd.DataFrame) -> str:
    """The README with its table of claims."""
    return README_TABLE.sub(summary(rows, "docs/evidence/"), text)


def draw(path: Path, folder: Path) -> None:
    """Draw the figure of kept curves: over simulated time where clients differ in their speeds, else over rounds."""
    curves = kept(path)
    if path.stem.startswith("srpfl"):
        figure = time_figure(curves, COMMUNICATION_TIMES)
    else:
        figure = cost_figure(curves, ROUNDS)
        later = [curve.score_kind.scale * curve.means[:, len(curve.rounds) // 4 :] for curve in curves]
        figure.axes[0].set_ylim(min(each.min() for each in later) - 1, max(each.max() for each in later) + 1)
    save_figure(figure, folder / f"{path.stem}.png", dpi=120)


if __name__ == "__main__":
    found = read()
    PAGE.write_text(page(found, read_tried()))
    for path in CURVES:
        draw(path, EVIDENCE / "pictures")
    README.write_text(readme(README.read_text(), found))
