"""DePRL's Figures 10 and 11: how far its clients' bodies are from their mean, before and after mixing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pfl_lightning.report import RunRecord, save_figure
from pfl_lightning.report.drawing import draw_band, grid
from pfl_lightning.report.style import COLORS
from reproduction.claims import Claim, Floats, fact, ours, paired, trend
from reproduction.deprl.runs import ALPHAS, GRAPHS, Graph, curves, folder, sweep
from reproduction.runs import Place

ROUNDING = 1e-6  # of the error before mixing


class Errors(NamedTuple):
    """Mean squared distance of the clients' bodies to their mean in each round.

    Attributes:
        before: Before mixing, ``[seeds, rounds]``.
        after: After mixing, ``[seeds, rounds]``.
    """

    before: Floats
    after: Floats


Found = Mapping[tuple[Graph, float], Errors]  # by graph and concentration


def fig10_claims(place: Place) -> list[Claim]:
    """Figures 10 and 11: the errors of DePRL's runs of Table 1."""
    trained = curves(place, [sweep(place, "deprl")])
    found = {
        (graph, alpha): errors(trained[folder("deprl", graph, alpha)].runs) for graph in GRAPHS for alpha in ALPHAS
    }
    save_figure(consensus_figure(found), place.folder / "fig10.png")
    return [*mixed_at_once(found), *rise_and_decay(found), *ours(denser_agrees_better(found))]


def errors(runs: Sequence[RunRecord]) -> Errors:
    """What some runs that differ in their seed have logged."""
    return Errors(
        *(np.array([list(run.logged[f"consensus/{when}"].values()) for run in runs]) for when in Errors._fields)
    )


def mixed_at_once(found: Found) -> Iterator[Claim]:
    """On the complete graph nothing is left after mixing."""
    for alpha in ALPHAS:
        before, after = found["Complete", alpha]
        left = float((after / before).max())
        text = f"alpha {alpha}, Complete: largest share of the error of consensus that mixing leaves"
        yield fact(text, f"{left:.1g}", f"at most {ROUNDING:g}, by rounding", left <= ROUNDING)


def rise_and_decay(found: Found) -> Iterator[Claim]:
    """On the other graphs the error after mixing grows first, and then falls with the learning rate."""
    for alpha in ALPHAS:
        for graph in ("Ring", "ErdosRenyi"):
            after = found[graph, alpha].after
            peak, rounds = int(after.mean(0).argmax()), after.shape[1]
            yield paired(
                f"alpha {alpha}, {graph}: error of consensus after rounds 1, {peak + 1} (the largest) and {rounds}",
                ", ".join(f"{after[:, at].mean():.2g}" for at in (0, peak, -1)),
                "rises, then falls",
                after[:, peak] - after[:, 0],
                after[:, peak] - after[:, -1],
            )


def denser_agrees_better(found: Found) -> Iterator[Claim]:
    """The sparser the graph, the larger the error."""
    for alpha in ALPHAS:
        means = [found[graph, alpha].after.mean(1) for graph in GRAPHS]
        text = f"alpha {alpha}: error of consensus, mean over the rounds, on {', '.join(GRAPHS)}"
        yield trend(text, means, digits=6)


def consensus_figure(found: Found) -> Figure:
    """Errors against rounds, a panel for each concentration.

    Args:
        found: Errors of all graphs.

    Returns:
        Solid lines are errors after mixing, dashed ones those before; bands are one standard deviation over the seeds.
    """
    with grid(8.5, 2.6, 1, len(ALPHAS), sharey=True) as (figure, (panels,)):
        for axes, alpha in zip(panels, ALPHAS, strict=True):
            for graph, color in zip(GRAPHS, COLORS, strict=False):
                _draw(axes, found[graph, alpha], color, graph)
            axes.set(title=f"alpha = {alpha}", xlabel="communication rounds", ylim=(0, None))
        panels[0].set_ylabel("error of consensus")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _draw(axes: Axes, found: Errors, color: str, graph: Graph) -> None:
    rounds = np.arange(1, found.after.shape[1] + 1)
    draw_band(axes, rounds, found.before, {"color": color, "linestyle": "--"}, f"{graph}, before mixing")
    draw_band(axes, rounds, found.after, {"color": color}, f"{graph}, after")
