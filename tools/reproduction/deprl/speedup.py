"""DePRL's Table 9 and Figure 4: how much sooner more clients are done, on the simulated clock.

The data set is split among all clients, and a client computes for as long as it takes to go through its samples.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pfl_lightning.report import Curve, save_figure
from pfl_lightning.report.drawing import grid
from pfl_lightning.report.style import looks_of
from pfl_lightning.report.tables import markdown
from reproduction.claims import Claim, Floats, paired, spread, trend
from reproduction.deprl.orderings import NAMES
from reproduction.deprl.paper import TABLE9
from reproduction.deprl.runs import MethodName, curves, final, folder, sweep
from reproduction.runs import Place, publish

METHODS: Sequence[MethodName] = ("fedrep", "d-psgd", "dispfl", "deprl")
CLIENTS = (4, 8, 16, 32)
ALPHA = 0.3  # the graph and alpha are not known; those of the ring and 0.3 are nearest to Table 1
LATENCY = 0.01  # simulated seconds of communication in a round
SECONDS = {"cifar100": 1e-3, "harbox": 5e-5, "fashion_mnist": 5e-5}  # of a training sample in a round
TARGETS = {"cifar100": 0.35, "harbox": 0.6, "fashion_mnist": 0.85}  # the last is ours
LINEAR = 0.7  # least share of the ideal speed-up
# full epochs, and a rate that falls so fast that training is over after 50 rounds
SMALL_ROUNDS = 50
SMALL = f"--model.epoch_steps=null --model.lr_decay=0.85 --trainer.max_steps={SMALL_ROUNDS}"


class Result(NamedTuple):
    """What is measured of a method with some clients, ``[seeds]`` each.

    Attributes:
        accuracy: Mean test accuracy after the last round, in %.
        convergence: Simulated seconds until the training loss has converged (``converged_round``); nan for never.
        target: Simulated seconds until an accuracy; nan for never.
    """

    accuracy: Floats
    convergence: Floats
    target: Floats


Found = Mapping[tuple[MethodName, int], Result]  # by method and number of clients


def table9_claims(place: Place) -> list[Claim]:
    """Table 9: accuracy, convergence time and time to an accuracy of 4 to 32 clients."""
    place = place._replace(folder=place.folder / "speedup")
    vary = {"data.num_clients": CLIENTS}
    sweeps = [sweep(place, method, ("Ring",), (ALPHA,), vary, options(place, method)) for method in METHODS]
    trained = curves(place, sweeps)
    found = {
        (method, clients): result(
            trained[folder(method, "Ring", ALPHA, {"data.num_clients": clients})], TARGETS[place.pair]
        )
        for clients in CLIENTS
        for method in METHODS
    }
    publish(place, "table9", speedup_table(place, found))
    save_figure(speedup_figure(found), place.folder / "fig4.png")
    return [*times_fall(found), nearly_linear(found)]


def options(place: Place, method: MethodName) -> list[str]:
    """What these runs are told beside those of Table 1: all rounds are evaluated, so that times are exact."""
    small = shlex.split(SMALL) if place.scale == "small" else []
    if small and method == "dispfl":
        small.append(f"--model.drop_rounds={SMALL_ROUNDS}")  # its masks change over the run
    clock = f"--data.speeds.seconds={SECONDS[place.pair]} --data.time_per=sample --trainer.val_check_interval=1"
    return [*small, *clock.split()]


def result(curve: Curve, target: float) -> Result:
    """Measure some runs that differ in their seed."""
    return Result(final(curve), curve.seconds_to_convergence(LATENCY), curve.seconds_to(target, LATENCY))


def times_fall(found: Found) -> Iterator[Claim]:
    """More clients converge sooner, and reach the accuracy sooner, with every method."""
    for name, text in (("convergence", "convergence time"), ("target", "time to the accuracy")):
        for method in METHODS:
            times = [getattr(found[method, clients], name) for clients in CLIENTS]
            yield trend(f"{NAMES[method]}: {text} of {', '.join(map(str, CLIENTS))} clients (s)", times)


def nearly_linear(found: Found) -> Claim:
    """DePRL reaches the accuracy almost eight times as fast with eight times as many clients."""
    ratios = found["deprl", CLIENTS[0]].target / found["deprl", CLIENTS[-1]].target
    least = LINEAR * CLIENTS[-1] / CLIENTS[0]
    text = f"DePRL: time to the accuracy of {CLIENTS[0]} clients over that of {CLIENTS[-1]}"
    return paired(text, spread(ratios), f"above {least:.1f}", ratios - least)


def speedups(found: Found, method: MethodName, name: str) -> Floats:
    """Mean time of the fewest clients over that of each number of clients, ``[numbers]``."""
    times = np.array([getattr(found[method, clients], name).mean() for clients in CLIENTS])
    ratios: Floats = times[0] / times
    return ratios


def speedup_table(place: Place, found: Found) -> str:
    """A row for each number of clients and method, with the paper's numbers in brackets where it has some."""
    paper = TABLE9.get(place.pair, {})
    rows = []
    for (method, clients), measured in found.items():
        known = paper[method][CLIENTS.index(clients)] if paper else None
        cells = list(map(spread, measured))
        beside = [f"{cell} ({number})" for cell, number in zip(cells, known, strict=True)] if known else cells
        rows.append([clients, NAMES[method], *beside])
    title = (
        f"{place.pair}, {place.scale} scale, {len(place.seeds)} seeds, ring, alpha {ALPHA}: mean test accuracy after "
        "the last round (%), and simulated seconds, with the paper's in brackets"
    )
    goal = f"time to {TARGETS[place.pair]:.0%}"
    return markdown(title, ["clients", "method", "accuracy", "convergence time", goal], rows)


def speedup_figure(found: Found) -> Figure:
    """Speed-up against the number of clients, by both times; dashed is the ideal."""
    with grid(6.5, 2.6, 1, 2, sharey=True) as (figure, (panels,)):
        for axes, name, title in zip(panels, Result._fields[1:], ("convergence time", "time to accuracy"), strict=True):
            for method, look in zip(METHODS, looks_of([NAMES[method] for method in METHODS]), strict=True):
                axes.plot(CLIENTS, speedups(found, method, name), label=NAMES[method], **look)
            axes.plot(CLIENTS, [clients / CLIENTS[0] for clients in CLIENTS], "--", color="grey", label="ideal")
            axes.set(title=title, xlabel="clients", xticks=CLIENTS)
        panels[0].set_ylabel(f"speed-up over {CLIENTS[0]} clients")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure
