"""The figures of SRPFL: the runs that they need, and the claims that the paper makes about them."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pfl_lightning.report import curves_of, save_figure, time_figure
from reproduction.claims import Claim, about
from reproduction.curves import keep
from reproduction.runs import CONFIGS, SCALES, Place, Scale, Sweep, data_options, trained
from reproduction.srpfl.claims import (
    COMMUNICATION_TIMES,
    FULL_PICTURE,
    PARTIAL,
    above,
    earlier,
    gain_persists,
    gain_shrinks_with_communication,
    together,
)
from reproduction.srpfl.comparisons import VISIBLE, Comparison, slower_with_stragglers, smaller_gain
from reproduction.srpfl.measures import Check, Curves

METHODS = ("fedavg", "flanp", "fedrep", "fedrep-srpfl", "lg-fedavg", "lg-srpfl", "hf-maml")
FOUR = ("fedrep", "fedrep-srpfl", "lg-fedavg", "lg-srpfl")
PAIR = ("fedrep", "fedrep-srpfl")
SEEDS: Mapping[Scale, Sequence[int]] = {"small": [10, 20, 30], "two_cores": [10, 20, 30], "full": [10, 20, 30, 40]}
SHARES = (0.1, 0.3)  # of stragglers

# what stands in for EMNIST
CLOTHES = (
    "--data.val_fraction=0 --data.partition=ConsecutiveClasses --data.partition.classes_per_client=5 "
    "--data.partition.sizes=EqualSizes --data.partition.sizes.samples=250 "
    "--model.lr=0.03"  # as validation samples chose
)
# settings for two CPU cores: fewer and smaller clients, fewer rounds, smaller networks
SMALL = {
    "cifar10": (
        "--data.num_clients=20 --data.augment=false --data.max_samples=200 --model.network.channels=[8,16] "
        "--trainer.max_steps=40 --trainer.val_check_interval=4"
    ),
    "femnist": "--data.num_clients=20 --data.test_fraction=0.34 --trainer.max_steps=60 --trainer.val_check_interval=2",
    "fashion_mnist": f"{CLOTHES} --data.num_clients=20 --trainer.max_steps=40 --trainer.val_check_interval=2",
}
# the paper's clients, rounds and networks, and one local epoch where all clients are in a round
TWO_CORES = {
    "femnist": "--data.test_fraction=0.34 --model.epochs=1 --trainer.val_check_interval=5",
    "fashion_mnist": f"{CLOTHES} --data.num_clients=100 --trainer.max_steps=150 --trainer.val_check_interval=5",
    "cifar10": "--data.augment=false --trainer.val_check_interval=5",  # of the images at hand, a client has 100
}
CUTS: Mapping[Scale, Mapping[str, str]] = {"small": SMALL, "two_cores": TWO_CORES, "full": {}}
SMALL_FINETUNING = {"cifar10": "--model.eval_epochs=3"}
SMALL_HF_MAML = (
    "--model.lr=0.01"  # fine-tunes nothing; with the papers' 0.1 it diverges there, on CIFAR-10 with 0.03 too
)
DOUBLING = {
    "small": "--trainer.callbacks.n0=5 --trainer.callbacks.rounds_per_stage=8",
    "two_cores": "",
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
        check: The claims about this panel, in place of the figure's.
    """

    data: str
    methods: Sequence[str] = METHODS
    options: str = ""
    name: str = ""
    check: Check | None = None

    @property
    def title(self) -> str:
        """Its name among the panels of its figure."""
        return f"{self.data} {self.name}".strip()


class Beside(NamedTuple):
    """Another figure, with whose panels those of a figure are compared.

    Attributes:
        figure: The other figure.
        check: The claims about two panels.
        title: Title of its panel; by default that of the same data.
        scales: The scales at which only what the figures are about differs.
    """

    figure: str
    check: Comparison
    title: str = ""
    scales: Sequence[Scale] = SCALES


class Figure(NamedTuple):
    """A figure of the paper.

    Attributes:
        panels: Its panels at full scale.
        small: Its panels at small scale.
        two_cores: Its panels at the scale of two cores.
        check: The claims about each panel.
        across: The claims about all panels together, given by name.
        beside: The claims about its panels and those of another figure.
    """

    panels: Sequence[Panel]
    small: Sequence[Panel]
    check: Check
    across: Callable[[Mapping[str, Curves]], list[Claim]] = lambda panels: []
    beside: Beside | None = None
    two_cores: Sequence[Panel] = ()

    def at(self, scale: Scale) -> Sequence[Panel]:
        """Its panels."""
        return {"small": self.small, "two_cores": self.two_cores, "full": self.panels}[scale]


def slower(panels: Mapping[str, Curves]) -> list[Claim]:
    """What more stragglers cost, of panels in the order of their shares."""
    return slower_with_stragglers(dict(zip(SHARES, panels.values(), strict=True)))


def sampled(everyone: str, than: str) -> Figure:
    """A figure with a fifth of the clients in a round, beside that with all of them, which on two cores train less."""
    beside = Beside(everyone, smaller_gain(than), scales=("small", "full"))
    return Figure(IMAGES, (HALF,), PARTIAL, beside=beside, two_cores=SAMPLED)


IMAGES = tuple(Panel(data) for data in ("cifar10", "cifar100", "emnist", "femnist"))
# the letters a to j are few here, 27 images for each of 20 clients, 180 to test on; the digits are ten classes too
LETTERS = "--data.partition.sizes=EqualSizes --data.partition.sizes.samples=27 --trainer.max_steps=150"
DIGITS = "--data.classes=[0,10] --data.partition.sizes=EqualSizes --data.partition.sizes.samples=90"
UNEQUAL = "--data.classes=[0,10] --data.partition.sizes=UniformSizes --data.partition.sizes.low=60"
UNEQUAL += " --data.partition.sizes.high=90"
GROUPED = "--data.classes=[0,10] --data.max_samples=60"
WRITERS = "--data.partition=NaturalUsers --data.classes=null"
WITHOUT_OTHERS = together(PARTIAL, gain_shrinks_with_communication)
FEMNIST, FASHION = Panel("femnist", options=DIGITS), Panel("fashion_mnist", FOUR, check=WITHOUT_OTHERS)
FEW_LETTERS = Panel("femnist", PAIR, LETTERS, "letters", WITHOUT_OTHERS)
HALF = Panel("femnist", PAIR, f"{DIGITS} --data.participation.pool_size=10")
DIGITS_ALONE = Panel("femnist", PAIR, DIGITS, check=WITHOUT_OTHERS)
EVERYONE = (Panel("fashion_mnist", PAIR, check=WITHOUT_OTHERS), DIGITS_ALONE)
SAMPLED = (Panel("fashion_mnist", PAIR), Panel("femnist", PAIR, f"{DIGITS} --model.epochs=5"))
IMBALANCED, CORRELATED = ((Panel("femnist", PAIR, options),) for options in (UNEQUAL, GROUPED))
NATURAL = (Panel("femnist", PAIR, WRITERS, "writers"),)
STRAGGLERS, SMALL_STRAGGLERS = (
    tuple(Panel(data, methods, f"--data.speeds.stragglers={share}", f"{share:.0%} stragglers") for share in SHARES)
    for data, methods in (("sent140", FOUR), ("fashion_mnist", PAIR))
)
SENT140 = Panel("sent140", check=together(PARTIAL, above("LG-SRPFL", "FedRep-SRPFL")))
FIGURES: dict[str, Figure] = {
    "fig3": Figure(IMAGES, (Panel("cifar10"), FEMNIST, FASHION, FEW_LETTERS), FULL_PICTURE, two_cores=EVERYONE),
    "fig4": sampled("fig3", "in Fig. 3")._replace(two_cores=(*SAMPLED, Panel("cifar10", PAIR))),
    "fig5": Figure(IMAGES, (DIGITS_ALONE,), FULL_PICTURE, two_cores=EVERYONE),
    "fig6": sampled("fig5", "in Fig. 5"),
    "fig7": Figure(
        (Panel("cifar10"), Panel("emnist"), SENT140),
        (Panel("fashion_mnist", PAIR, "--data.partition.classes_per_client=10"),),
        PARTIAL,
    ),
    "fig8_imbalanced": Figure((Panel("femnist"),), IMBALANCED, gain_persists, two_cores=IMBALANCED),
    "fig8_natural": Figure(
        (Panel("sent140"),),
        NATURAL,
        earlier,
        beside=Beside("fig3", smaller_gain("on the images of Fig. 3", VISIBLE), "femnist"),
        two_cores=NATURAL,
    ),
    "fig8_stragglers": Figure(STRAGGLERS, SMALL_STRAGGLERS, earlier, slower),
    "fig8_correlated": Figure(
        (Panel("cifar10"),),
        CORRELATED,
        earlier,
        beside=Beside("fig3", smaller_gain("in Fig. 3")),
        two_cores=CORRELATED,
    ),
}


def fit_options(name: str, panel: Panel, scale: Scale, root: Path) -> list[str]:
    """Options of ``pfl fit`` for the runs of a panel, except the method's."""
    papers = CONFIGS / "papers/srpfl"
    own = papers / f"{panel.data}.yaml"
    files = [own if own.is_file() else CONFIGS / f"data/{panel.data}.yaml", papers / f"{name}.yaml"]
    cuts = shlex.split(CUTS[scale].get(panel.data, ""))
    data = data_options(root, panel.data)
    return [*(f"--config={file}" for file in files), *data, *cuts, *shlex.split(panel.options)]


def sweeps_of(panel: Panel, scale: Scale) -> list[Sweep]:
    """The methods of a panel, grouped by what they alone are told."""
    doubled = [method for method in panel.methods if method.startswith("flanp") or method.endswith("srpfl")]
    kind = "full sent140" if (scale, panel.data) == ("full", "sent140") else scale
    plain = [method for method in panel.methods if method not in doubled]
    careful = [method for method in panel.methods if method == "hf-maml" and scale == "small"]
    finetuning = SMALL_FINETUNING.get(panel.data, "") if scale == "small" else ""
    groups = (
        ([name for name in plain if name not in careful], finetuning),
        (doubled, f"{finetuning} {DOUBLING[kind]}"),
        (careful, SMALL_HF_MAML),
    )
    return [Sweep(methods, options=shlex.split(options)) for methods, options in groups if methods]


def panel_place(name: str, panel: Panel, place: Place) -> Place:
    """Where and how the runs of a panel are made.

    Args:
        name: The figure.
        panel: One of its panels.
        place: Any figure's folder, scale and seeds.
    """
    folder = place.folder.parent / f"srpfl-{name}-{place.scale}" / panel.title.replace(" ", "_").replace("%", "")
    return place._replace(folder=folder, options=fit_options(name, panel, place.scale, place.root))


def compared(name: str, panel: Panel, place: Place) -> Panel | None:
    """The panel of another figure that a panel is compared with, and its runs that are needed."""
    beside = FIGURES[name].beside
    if beside is None or place.scale not in beside.scales:
        return None
    others = FIGURES[beside.figure].at(place.scale)
    return next((each._replace(methods=PAIR) for each in others if each.title == (beside.title or panel.data)), None)


def panel_curves(panel: Panel, place: Place) -> Curves:
    """Train the runs of a panel, and read them: its curves, by their names in the paper.

    Raises:
        SystemExit: If a run fails.
    """
    found = trained(place, sweeps_of(panel, place.scale))
    ordered = [run for name in sorted(found) for run in found[name]]  # a method has the same colour in all panels
    return {curve.label: curve for curve in curves_of(ordered)}


def figure_claims(name: str, place: Place) -> list[Claim]:
    """Run all panels of a figure, draw them, and check them.

    Raises:
        SystemExit: If a run fails.
    """
    figure = FIGURES[name]
    claims: list[Claim] = []
    curves: dict[str, Curves] = {}
    for panel in figure.at(place.scale):
        here = panel_place(name, panel, place)
        found = curves[panel.title] = panel_curves(panel, here)
        save_figure(time_figure([*found.values()], COMMUNICATION_TIMES), here.folder.with_suffix(".png"), dpi=120)
        keep([*found.values()], here.folder.with_suffix(".csv"))
        checked = (panel.check or figure.check)(found)
        if figure.beside and (other := compared(name, panel, place)):
            there = panel_place(figure.beside.figure, other, place)
            checked += figure.beside.check(found, panel_curves(other, there))
        claims += about(panel.title, checked)
    return [*claims, *figure.across(curves)]
