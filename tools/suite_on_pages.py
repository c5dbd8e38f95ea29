"""Puts what a suite says of a method on its page when the site is built: a table, and curves; a hook of mkdocs."""

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from pfl_lightning.report import read_results
from pfl_lightning.report.drawing import COLORS, draw_band, grid
from pfl_lightning.report.suite_report import GREY, data_table
from pfl_lightning.report.suite_results import SuiteResults

NAME = "two_cores"
FOLDER = Path(__file__).parents[1] / "docs/evidence/results/suites" / NAME
REFERENCES = {"Local": ":", "FedAvg-FT": "-"}  # and their lines
FILE = re.compile(r'--8<-- "configs/methods/(.+)\.yaml"')
PANEL = (4.2, 2.2)  # inches
TEXT = """
**In the suite [`{suite}`](../evidence/methods.md)**, beside Local and FedAvg-FT:
`pfl bench --suite {suite} --only {data} --methods '[{methods}]' --root DIR` makes these runs again.
"""


@cache
def kept() -> SuiteResults:
    """The results of the suite."""
    return read_results(FOLDER).with_unique_labels()


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page of a method, with what each data set of the suite says of its settings files."""
    files = FILE.findall(markdown) if page.file.src_uri.startswith("methods/") else []
    here = kept().scores[kept().scores["method"].isin(files)]
    if here.empty:
        return markdown
    labels = list(here["label"].unique())
    methods = ", ".join(f"methods/{name}" for name in here["method"].unique())
    results = kept().only([*labels, *REFERENCES]).on(here["data"].unique())
    text = TEXT.format(suite=NAME, data=" ".join(results.score_kinds), methods=methods)
    tables = "\n".join(data_table(results, data).text for data in results.score_kinds)
    return f"{markdown}\n{text}\n{tables}\n![curves](data:image/svg+xml;base64,{picture(results, labels)})\n"


def picture(results: SuiteResults, labels: Sequence[str]) -> str:
    """The mean scores of some methods from the first evaluation of trained models on, as SVG in base 64.

    Args:
        results: Those of the methods and the references, with a panel for each data set.
        labels: The methods.
    """
    width, height = PANEL
    looks = {label: {"color": color} for label, color in zip(labels, COLORS, strict=False)}
    looks |= {label: {"color": GREY, "linestyle": line} for label, line in REFERENCES.items() if label not in labels}
    kinds = results.score_kinds
    with grid(width * len(kinds), height, 1, len(kinds)) as (figure, (row,)):
        for axes, (data, kind) in zip(row, kinds.items(), strict=True):
            curves = results.curves[(results.curves["data"] == data) & (results.curves["round"] > 0)]
            for label, look in looks.items():
                scores = curves[curves["label"] == label].pivot(index="seed", columns="round", values="mean")
                draw_band(axes, scores.columns.to_numpy(), kind.scale * scores.to_numpy(), look, label)
            axes.set(title=data, xlabel="rounds", xticks=curves["round"].unique(), ylabel=f"test {kind.label}")
        row[-1].legend(fontsize=7)
    written = BytesIO()
    figure.savefig(written, format="svg")
    return b64encode(written.getvalue()).decode()
