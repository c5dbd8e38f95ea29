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
SIZE = (5.0, 2.2)  # inches
TEXT = """
**In the suite [`{suite}`](../evidence/methods.md)**, beside Local and FedAvg-FT:
`pfl bench --suite {suite} --only {data} --methods '[{methods}]'` makes these runs again.
"""


@cache
def kept() -> SuiteResults:
    """The results of the suite."""
    return read_results(FOLDER).with_unique_labels()


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page of a method, with what the first data set of the suite says of its settings files."""
    files = FILE.findall(markdown) if page.file.src_uri.startswith("methods/") else []
    scores = kept().scores
    data = next(iter(kept().score_kinds))
    here = scores[(scores["data"] == data) & scores["method"].isin(files)]
    if here.empty:
        return markdown
    labels = list(here["label"].unique())
    methods = ", ".join(f"methods/{name}" for name in here["method"].unique())
    text = TEXT.format(suite=NAME, data=data, methods=methods)
    table = data_table(kept().only([*labels, *REFERENCES]), data).text
    return f"{markdown}\n{text}\n{table}\n![curves](data:image/svg+xml;base64,{picture(data, labels)})\n"


def picture(data: str, labels: Sequence[str]) -> str:
    """The mean scores of some methods from the first evaluation of trained models on, as SVG in base 64."""
    kind = kept().score_kinds[data]
    curves = kept().curves
    curves = curves[(curves["data"] == data) & (curves["round"] > 0)]
    looks = {label: {"color": color} for label, color in zip(labels, COLORS, strict=False)}
    looks |= {label: {"color": GREY, "linestyle": line} for label, line in REFERENCES.items() if label not in labels}
    with grid(*SIZE, 1, 1) as (figure, ((axes,),)):
        for label, look in looks.items():
            table = kind.scale * curves[curves["label"] == label].pivot(index="seed", columns="round", values="mean")
            draw_band(axes, table.columns.to_numpy(), table.to_numpy(), look, label)
        axes.set(xlabel="rounds", xticks=table.columns, ylabel=f"test {kind.label}")
        axes.legend(fontsize=7)
    written = BytesIO()
    figure.savefig(written, format="svg")
    return b64encode(written.getvalue()).decode()
