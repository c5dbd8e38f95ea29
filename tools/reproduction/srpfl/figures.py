"""The figures of SRPFL: the runs that they need, and the claims that the paper makes about them."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pfl_lightning.report import curves_of, time_figure
from reproduction.claims import Claim
from reproduction.runs import CONFIGS, Experiment, Scale, Sweep, data_options, trained
from reproduction.srpfl.claims import (
    COMMUNICATION_TIMES,
    FULL_PICTURE,
    PARTIAL,
    Check,
    Curves,
    earlier,
    gain_persists,
    slower_with_stragglers,
)

FigureName = Literal[
    "fig3",
    "fig4",
    "fig5",
    "fig6",
    "fig7",
    "fig8_imbalanced",
    "fig8_natural",
    "fig8_stragglers",
    "fig8_correlated",
]

METHODS = ("fedavg", "flanp", "fedrep", "fedrep-srpfl", "lg-fedavg", "lg-srpfl", "hf-maml")
FOUR = ("fedrep", "fedrep-srpfl", "lg-fedavg", "lg-srpfl")
SEEDS = {"small": [10], "full": [10, 20, 30, 40]}

# settings that take two CPU cores a few minutes: fewer and smaller clients, fewer rounds, smaller networks
SMALL = {
    "cifar10": (
        "--data.num_clients=20 --data.augment=false --model.network.channels=[8,16] "
        "--trainer.max_steps=40 --trainer.val_check_interval=4"
    ),
    "femnist": "--data.num_clients=20 --data.test_fraction=0.34 --trainer.max_steps=60 --trainer.val_check_interval=2",
    "fashion_mnist": (
        "--data.num_clients=20 --data.val_fraction=0 --data.partition=ConsecutiveClasses "
        "--data.partition.classes_per_client=5 --data.partition.sizes=EqualSizes --data.partition.sizes.samples=250 "
        "--trainer.max_steps=40 --trainer.val_check_interval=2 --model.lr=0.03"  # the rate that validation samples chose
    ),
}
SMALL_REFITTING = {"cifar10": "--model.eval_epochs=3"}
SMALL_HF_MAML = "--model.lr=0.01"  # refits nothing; with the papers' 0.1 it diverges there, on CIFAR-10 with 0.03 too
DOUBLING = {
    "small": "--trainer.callbacks.n0=5 --trainer.callbacks.rounds_per_stage=8",
    "full": "",
    "full sent140": "--trainer.callbacks.n0=20 --trainer.callbacks.rounds_per_stage=[4,5,5]",
}


class Panel(NamedTuple):
    """One panel of a figure: a data set under the figure's setting.

    Attributes:
        data: Name of the data set, of its settings and of its folder.
        methods: Which methods.
        options: More options of the runs.
        name: Tells it from other panels of the same data.
    """

    data: str
    methods: Sequence[str] = METHODS
    options: str = ""
    name: str = ""


class Figure(NamedTuple):
    """A figure of the paper.

    Attributes:
        overlay: Its settings.
        panels: Its panels at full scale.
        small: Its panels at small scale; none where it needs the users of the whole Sent140.
        check: The claims about one panel.
        across: The claims about all panels together, given by name.
    """

    overlay: str
    panels: Sequence[Panel]
    small: Sequence[Panel]
    check: Check
    across: Callable[[dict[str, Curves]], list[Claim]] = lambda panels: []


IMAGES = tuple(Panel(data) for data in ("cifar10", "cifar100", "emnist", "femnist"))
EQUAL = "--data.partition.sizes=EqualSizes --data.partition.sizes.samples=27"
UNEQUAL = "--data.partition.sizes=UniformSizes --data.partition.sizes.low=18 --data.partition.sizes.high=27"
SMALL_IMAGES = (Panel("cifar10"), Panel("femnist", options=EQUAL), Panel("fashion_mnist"))
HALF = tuple(
    Panel(data, options=f"{options} --data.participation.pool_size={pool}")
    for data, options, pool in (("cifar10", "", 10), ("femnist", EQUAL, 10), ("fashion_mnist", "", 10))
)
STRAGGLERS, SMALL_STRAGGLERS = (
    tuple(Panel(data, FOUR, f"--data.speeds.stragglers={share}", f"{share:.0%} stragglers") for share in (0.1, 0.3))
    for data in ("sent140", "fashion_mnist")
)
FIGURES: dict[FigureName, Figure] = {
    "fig3": Figure("fig3", IMAGES, SMALL_IMAGES, FULL_PICTURE),
    "fig4": Figure("fig4", IMAGES, HALF, PARTIAL),
    "fig5": Figure("fig5", IMAGES, SMALL_IMAGES, FULL_PICTURE),
    "fig6": Figure("fig6", IMAGES, HALF, PARTIAL),
    "fig7": Figure(
        "fig7",
        (Panel("cifar10"), Panel("emnist"), Panel("sent140")),
        (Panel("cifar10"), Panel("fashion_mnist", options="--data.partition.classes_per_client=10")),
        PARTIAL,
    ),
    "fig8_imbalanced": Figure(
        "fig8_imbalanced", (Panel("femnist"),), (Panel("femnist", options=UNEQUAL),), gain_persists
    ),
    "fig8_natural": Figure("fig8_natural", (Panel("sent140"),), (), earlier),
    "fig8_stragglers": Figure("fig8_stragglers", STRAGGLERS, SMALL_STRAGGLERS, earlier, slower_with_stragglers),
    "fig8_correlated": Figure("fig8_correlated", (Panel("cifar10"),), (Panel("cifar10"),), gain_persists),
}


def fit_options(figure: Figure, panel: Panel, scale: Scale, root: Path) -> list[str]:
    """Options of ``pfl fit`` for the runs of a panel, except the method's."""
    papers = CONFIGS / "papers/srpfl"
    own = papers / f"{panel.data}.yaml"
    files = [own if own.is_file() else CONFIGS / f"data/{panel.data}.yaml", papers / f"{figure.overlay}.yaml"]
    small = shlex.split(SMALL[panel.data]) if scale == "small" else []
    data = data_options(root, panel.data)
    return [*(f"--config={file}" for file in files), *data, *small, *shlex.split(panel.options)]


def sweeps_of(panel: Panel, scale: Scale) -> list[Sweep]:
    """The methods of a panel, grouped by what they alone are told."""
    doubled = [method for method in panel.methods if method.startswith("flanp") or method.endswith("srpfl")]
    kind = "full sent140" if (scale, panel.data) == ("full", "sent140") else scale
    plain = [method for method in panel.methods if method not in doubled]
    careful = [method for method in panel.methods if method == "hf-maml" and scale == "small"]
    refitting = SMALL_REFITTING.get(panel.data, "") if scale == "small" else ""
    groups = (
        ([name for name in plain if name not in careful], refitting),
        (doubled, f"{refitting} {DOUBLING[kind]}"),
        (careful, SMALL_HF_MAML),
    )
    return [Sweep(methods, options=shlex.split(options)) for methods, options in groups if methods]


def panel_curves(panel: Panel, scale: Scale, experiment: Experiment) -> Curves:
    """Train the runs of a panel, and read them: its curves, by their names in the paper.

    Raises:
        SystemExit: If a run fails.
    """
    found = trained(experiment, sweeps_of(panel, scale))
    ordered = [run for name in sorted(found) for run in found[name]]  # a method has the same colour in all panels
    return {curve.label: curve for curve in curves_of(ordered)}


def figure_claims(figure: Figure, scale: Scale, root: Path, folder: Path, seeds: list[int], jobs: int) -> list[Claim]:
    """Run all panels of a figure, draw them, and check them."""
    claims: list[Claim] = []
    curves: dict[str, Curves] = {}
    for panel in figure.small if scale == "small" else figure.panels:
        name = f"{panel.data} {panel.name}".strip()
        runs = folder / name.replace(" ", "_").replace("%", "")
        experiment = Experiment(runs, fit_options(figure, panel, scale, root), seeds, jobs)
        curves[name] = panel_curves(panel, scale, experiment)
        time_figure(list(curves[name].values()), COMMUNICATION_TIMES).savefig(runs.with_suffix(".png"))
        claims += [claim._replace(claim=f"{name}: {claim.claim}") for claim in figure.check(curves[name])]
    return [*claims, *figure.across(curves)]
