"""The report of a suite: a table of each data set, paired differences, ranks with their critical difference, curves."""

from collections.abc import Iterator, Sequence
from math import ceil, isnan, nan, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from pfl_lightning.report.drawing import COLORS, draw_band, grid, save_figure
from pfl_lightning.report.measures import COMMUNICATION, LEVEL, TRAINING, half_width
from pfl_lightning.report.pictures import Format
from pfl_lightning.report.run_files import Floats
from pfl_lightning.report.suite_results import SuiteResults
from pfl_lightning.report.tables import (
    OVER_SEEDS,
    Markup,
    Row,
    Rows,
    Table,
    cost_cell,
    markdown,
    over_seeds,
    seeds_cell,
    seeds_latex,
    write_csv,
)
from pfl_lightning.score_kind import ScoreKind

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("mean", "worst_tenth", "shared")
COSTS = ("bits", "samples", "time", "seconds")
ROW_HEIGHT = 0.17  # inches of a method
PANEL = (1.5, 1.1)  # inches
PANELS_IN_A_ROW = 6
GREY = "0.6"
CAPTIONS = {
    "curves": "Mean test score of the clients over the rounds, the best method first; grey: the references. Lines are "
    "means over the seeds, bands are one sample standard deviation.",
    "ranks": "Mean ranks; methods whose bars do not overlap differ. Grey: those that the best one is told apart from.",
}


def critical_difference(methods: int, blocks: int, level: float = LEVEL) -> float:
    """By how much mean ranks must differ to tell two of some methods apart, by the test of Nemenyi.

    Janez Demsar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006.

    Args:
        methods: Number of methods that are ranked.
        blocks: How often they are ranked.
        level: Share of experiments in which no two methods are told apart that do not differ.

    Examples:
        >>> round(critical_difference(methods=5, blocks=30), 3)
        1.114
    """
    quantile = stats.studentized_range.ppf(level, methods, np.inf) / sqrt(2)
    return float(quantile * sqrt(methods * (methods + 1) / (6 * blocks)))


class Ranks(NamedTuple):
    """How methods rank.

    Attributes:
        of_blocks: A row for each data set and seed, a column for each method; 1 is the best.
        left_out: Methods that were not ranked, as they have no result with each seed of each data set.
    """

    of_blocks: "pd.DataFrame"
    left_out: Sequence[str]

    @property
    def mean(self) -> "pd.Series":
        """The mean rank of each method, the best first."""
        return self.of_blocks.mean().sort_values(kind="stable")

    @property
    def critical_difference(self) -> float:
        """See ``critical_difference``; endless for a single method."""
        blocks, methods = self.of_blocks.shape
        return critical_difference(methods, blocks) if methods > 1 else float("inf")

    @property
    def p_value(self) -> float:
        """How likely ranks would differ as much if all methods were alike, by the test of Friedman; nan for two."""
        if self.of_blocks.shape[1] < 3:
            return nan
        return float(stats.friedmanchisquare(*self.of_blocks.to_numpy().T).pvalue)


def ranks_of(results: SuiteResults) -> Ranks:
    """Rank the methods by their mean score, in blocks: for each data set and seed that has all of them.

    A run without a finite score comes last. Methods that lack a data set, or a seed that others have, are left out.
    """
    scores = results.scores.assign(is_there=True)
    signs = {data: 1.0 if kind.higher_is_better else -1.0 for data, kind in results.score_kinds.items()}
    scores["value"] = (scores["mean"] * scores["data"].map(signs)).fillna(-np.inf)
    blocks = scores.pivot(index=["data", "seed"], columns="label", values="value")
    is_whole = blocks.notna().all()
    ranks = blocks.loc[:, is_whole].rank(axis=1, ascending=False)
    return Ranks(ranks, sorted(blocks.columns[~is_whole]))


def write_suite_report(
    results: SuiteResults, references: Sequence[str], formats: Sequence[Format], folder: Path
) -> str:
    """Write the tables and figures of a report, and all of them on one page, and return what to say of it.

    Args:
        results: The results.
        references: Labels of methods that the others are compared with, as far as they are there.
        formats: Endings of the figures' files, such as ``pdf``.
        folder: Where to write.
    """
    results = results.with_unique_labels()
    ranks = ranks_of(results)
    known = {*ranks.of_blocks, *ranks.left_out}
    tables = list(suite_tables(results, ranks, references))
    figures = {f"curves_{data}": curves_figure(results, data, references) for data in results.score_kinds}
    if ranks.of_blocks.shape[1] > 1:
        figures["ranks"] = rank_figure(ranks)
    for table in tables:
        write_csv(table.rows, folder / f"{table.name}.csv")
        if table.latex:
            (folder / f"{table.name}.tex").write_text(table.latex)
    for name, figure in figures.items():
        save_figure(figure, *(folder / f"{name}.{ending}" for ending in formats))
    ends = [f"Every run on {data} has diverged.\n" for data in results.diverged_everywhere]
    ends += [f"No differences from {name}: it has no results here.\n" for name in references if name not in known]
    pictures = [f"![{CAPTIONS[name.partition('_')[0]]}]({name}.{formats[0]})\n" for name in figures]
    (folder / "report.md").write_text("\n".join(["# Report\n", *(table.text for table in tables), *ends, *pictures]))
    printed = [table.text for table in tables if table.name == "ranks"] or [tables[0].text]
    return "\n".join([*printed, *ends, f"More: {folder / 'report.md'}"])


def suite_tables(results: SuiteResults, ranks: Ranks, references: Sequence[str]) -> Iterator[Table]:
    """The tables of a report; see ``write_suite_report``."""
    order = [*ranks.mean.index, *ranks.left_out]
    for data in results.score_kinds:
        yield data_table(results, data)
    for reference in references:
        if reference in order:
            yield difference_table(results, reference, order)
    if ranks.of_blocks.shape[1] > 1:
        yield rank_table(ranks)


def data_table(results: SuiteResults, data: str) -> Table:
    """What the methods reach on a data set, the best first, and what that has cost.

    Returns:
        For each method ``mean``, ``worst_tenth``, ``shared``, ``bits``, ``samples``, ``time`` and ``seconds``, each as
        the mean over the seeds, and as ``<name>_seed_std`` its sample standard deviation.
    """
    kind = results.score_kinds[data]
    scores = results.scores[results.scores["data"] == data]
    rows: Rows = []
    for label, group in scores.groupby("label", sort=False):
        row: Row = {
            "method": _with_divergence(str(label), group),
            "chosen": group["chosen"].iloc[0],
            "seeds": len(group),
        }
        rows.append(row | over_seeds({name: group[name] for name in (*SCORES, *COSTS)}))
    rows.sort(key=lambda row: best_first(row["mean"], kind))
    units = [
        cost.unit(max((row[cost.name] for row in rows if not isnan(row[cost.name])), default=0.0))
        for cost in (COMMUNICATION, TRAINING)
    ]
    sizes = [*(size for size, _ in units), 1.0, 1.0]
    cells = [
        [row["method"], row["chosen"] or "-"]
        + [seeds_cell(row, name, kind) for name in SCORES]
        + [cost_cell(row[name] / size) for name, size in zip(COSTS, sizes, strict=True)]
        for row in rows
    ]
    title = f"{data}: clients' test {kind.label} at the last evaluation, {OVER_SEEDS}"
    heads = ["method", "chosen", "mean", "worst 10 %", "shared model", *(unit for _, unit in units), "simulated s", "s"]
    directions = dict.fromkeys(SCORES, kind.higher_is_better)
    name = f"table_{data}"
    return Table(name, rows, markdown(title, heads, cells), seeds_latex(name, title, rows, directions, kind))


def best_first(score: float, kind: ScoreKind) -> tuple[bool, float]:
    """What scores are sorted by: the best first, and those of runs that diverged last."""
    return isnan(score), -score if kind.higher_is_better else score


def difference_table(results: SuiteResults, reference: str, order: Sequence[str]) -> Table:
    """By how much methods are better than one of them with the same seed, on each data set.

    Args:
        results: The results.
        reference: Label of the method that the others are compared with.
        order: Labels of all methods.

    Returns:
        For each data set and method the ``difference`` of the mean scores, ``half`` of its 95 % interval, and over how
        many ``seeds``.
    """
    rows: Rows = []
    cells = []
    for label in order:
        line: list[str] = [label]
        for data, kind in results.score_kinds.items():
            differences = _differences(results, data, label, reference)
            half = float(half_width(differences))
            mean = float(differences.mean()) if len(differences) else nan
            rows.append({"data": data, "method": label, "difference": mean, "half": half, "seeds": len(differences)})
            line.append(_interval(mean, half, kind))
        if label != reference:
            cells.append(line)
    title = (
        f"Mean test score minus that of {reference} with the same seed: 95 % intervals over the seeds, "
        "each for itself, in bold if 0 is not in it; - where a run has diverged"
    )
    heads = ["method", *(f"{data}, {kind.label}" for data, kind in results.score_kinds.items())]
    name = "minus_" + "".join(letter if letter.isalnum() else "_" for letter in reference)
    return Table(name, [row for row in rows if row["method"] != reference], markdown(title, heads, cells))


def rank_table(ranks: Ranks) -> Table:
    """The mean rank of each method over all blocks, and over those of each data set."""
    by_data = ranks.of_blocks.groupby("data").mean()
    rows = [
        {"method": label, "rank": mean, **{f"rank_{data}": by_data.at[data, label] for data in by_data.index}}
        for label, mean in ranks.mean.items()
    ]
    cells = [[row["method"], *(f"{value:.1f}" for value in list(row.values())[1:])] for row in rows]
    return Table("ranks", rows, markdown(rank_caption(ranks), ["method", "mean rank", *by_data.index], cells))


def rank_caption(ranks: Ranks) -> str:
    """What the ranks say, in words."""
    blocks, methods = ranks.of_blocks.shape
    text = (
        f"Ranks of {methods} methods by their mean score, 1 is the best, over {blocks} blocks (a seed of a data set). "
        f"Mean ranks that differ by less than the critical difference, {ranks.critical_difference:.1f}, are not told "
        "apart (Nemenyi, 5 %)"
    )
    if not isnan(ranks.p_value):
        text += f"; that all methods are alike has p = {ranks.p_value:.2g} (Friedman)"
    text += ". The seeds of a data set share its clients and their samples: what ranks say is of these data sets"
    return text + (f". Not everywhere finished: {', '.join(ranks.left_out)}" if ranks.left_out else "")


def rank_figure(ranks: Ranks) -> Figure:
    """Mean ranks, each in the middle of a bar as long as the critical difference.

    Two methods differ where their bars do not overlap; those that the best one is told apart from are grey.
    """
    mean = ranks.mean
    half = ranks.critical_difference / 2
    places = np.arange(len(mean))
    is_close = mean - half <= mean.iloc[0] + half
    with grid(5.5, 0.9 + ROW_HEIGHT * len(mean), 1, 1) as (figure, ((axes,),)):
        axes.axvspan(mean.iloc[0] - half, mean.iloc[0] + half, color=COLORS[0], alpha=0.08, linewidth=0)
        for chosen, color in ((is_close, COLORS[0]), (~is_close, GREY)):
            style = {"fmt": "o", "color": color, "markersize": 3, "linewidth": 1}
            axes.errorbar(mean[chosen], places[chosen], xerr=half, **style)
        axes.set_yticks(places, mean.index, fontsize=7)
        limits = {"xlim": (0.5, len(mean) + 0.5), "ylim": (len(mean) - 0.4, -0.6)}
        axes.set(xlabel="mean rank ± half of the critical difference", **limits)
        axes.grid(axis="y", visible=False)
    return figure


def curves_figure(results: SuiteResults, data: str, references: Sequence[str]) -> Figure:
    """The mean score of each method over the rounds on a data set, one panel each, the best first.

    Lines are means over the seeds, bands one sample standard deviation; grey lines are the references.
    """
    kind = results.score_kinds[data]
    curves = results.curves[results.curves["data"] == data]
    seeds_of = {
        label: kind.scale * group.pivot(index="seed", columns="round", values="mean")
        for label, group in curves.groupby("label", sort=False)
    }
    labels = sorted(seeds_of, key=lambda label: best_first(seeds_of[label].iloc[:, -1].mean(), kind))
    columns = min(PANELS_IN_A_ROW, len(labels))
    rows = ceil(len(labels) / columns)
    size = PANEL[0] * columns + 0.5, PANEL[1] * rows + 0.4
    with grid(*size, rows, columns, sharex=True, sharey=True) as (figure, panels):
        for axes, label in zip(panels.flat, labels, strict=False):
            for reference in references:
                if reference in seeds_of and reference != label:
                    middle = seeds_of[reference].mean()
                    axes.plot(middle.index, middle, color=GREY, linewidth=0.8)
            table = seeds_of[label]
            draw_band(axes, table.columns.to_numpy(), table.to_numpy(), {"color": COLORS[0]}, label)
            axes.set_title(label, fontsize=7)
        for axes in panels.flat[len(labels) :]:
            axes.set_axis_off()
        figure.supxlabel("rounds", fontsize=8)
        figure.supylabel(f"test {kind.label}", fontsize=8)
    return figure


def _differences(results: SuiteResults, data: str, label: str, reference: str) -> Floats:
    """A method's mean score minus that of another with the same seed, ``[seeds]`` of both; nan for diverged runs."""
    scores = results.scores[results.scores["data"] == data].set_index(["label", "seed"])["mean"]
    if not {label, reference} <= {*scores.index.get_level_values("label")}:
        return np.empty(0)
    own, other = scores[label].align(scores[reference], join="inner")
    differences: Floats = (own - other).to_numpy()
    return differences


def _interval(mean: float, half: float, kind: ScoreKind) -> str:
    """A difference with half of its interval; bold if 0 is not in it."""
    if isnan(mean):
        return "-"
    text = f"{kind.scale * mean:+.{kind.digits}f}"
    if half == float("inf"):
        return text
    text += f" ± {kind.show(half)}"
    return Markup(f"**{text}**") if abs(mean) > half else text


def _with_divergence(label: str, group: "pd.DataFrame") -> str:
    """The label of a method, and how many of its runs have diverged."""
    diverged = int(group["diverged"].sum())
    return f"{label} ({diverged} of {len(group)} diverged)" if diverged else label
