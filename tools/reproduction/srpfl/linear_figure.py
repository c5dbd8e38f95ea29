"""The picture of SRPFL's linear case."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from theory.times import equal_stages_ratio

from pfl_lightning.report import save_figure
from pfl_lightning.report.drawing import grid
from reproduction.claims import Floats, deviation
from reproduction.srpfl.linear import LAST, N0, PARTICIPANTS, ROUNDS, Distances


def draw(
    distances: Distances, floors: Mapping[float, Mapping[int, Floats]], ratios: Mapping[int, Floats], path: Path
) -> None:
    """Draw contraction, noise floors and time ratios side by side: means over the seeds, with what they spread."""
    with grid(13, 4, 1, 3) as (figure, (panels,)):
        shrinking, floor, ratio = panels
        for n, runs in distances.items():
            (line,) = shrinking.semilogy(runs.mean(0), label=f"n = {n}")
            shrinking.fill_between(range(runs.shape[1]), runs.min(0), runs.max(0), color=line.get_color(), alpha=0.15)
        shrinking.set(title="contraction without noise; bands: all seeds", xlabel="communication rounds")
        shrinking.set_ylabel("principal-angle distance")
        for noise, by_size in floors.items():
            color = bars(floor, by_size, "o", f"noise {noise}")
            line = 0.44 * noise / np.sqrt(list(by_size))
            floor.plot(list(by_size), line, ":", color=color, label=f"{0.44 * noise:.2g} / √n")
        per_doubling(floor, PARTICIPANTS)
        floor.set(title="noise floor; bars: std over seeds", xlabel="participants n", yscale="log")
        floor.set_ylabel(f"mean distance, rounds {ROUNDS - LAST + 1} to {ROUNDS}")
        exact = [N0, *ratios]
        bars(ratio, ratios, "o-", "to the same distance, simulated")
        ratio.plot(exact, [equal_stages_ratio(N0, pool) for pool in exact], "s--", label="equal stages, closed form")
        per_doubling(ratio, exact)
        ratio.set(title="time of SRPFL / time of FedRep; bars: std over seeds", xlabel="clients N", ylim=(0, None))
        ratio.set_ylabel("ratio of expected seconds")
        for axes in panels:
            axes.legend()
    save_figure(figure, path, dpi=120)


def bars(axes: Axes, values: Mapping[int, Floats], style: str, label: str) -> Any:
    """Draw means over the seeds with their sample standard deviations; returns the colour."""
    means = [found.mean() for found in values.values()]
    spreads = [deviation(found) for found in values.values()]
    return axes.errorbar(list(values), means, spreads, fmt=style, label=label)[0].get_color()


def per_doubling(axes: Axes, values: Sequence[int]) -> None:
    """A logarithmic axis with these values on it."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
