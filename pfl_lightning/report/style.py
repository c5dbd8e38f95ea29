"""The look of figures in print size: sizes, and one colour and marker for each method."""

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

from matplotlib.rcsetup import cycler

# Okabe and Ito's colours for the colour-blind (Wong, Nature Methods 8, 441) without yellow, and three of Paul Tol's
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    *("#882255", "#999933", "#332288"),
)
BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY, BLACK, WINE, OLIVE, INDIGO = COLORS
PRINT: dict[Any, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLORS),
    "grid.alpha": 0.3,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "lines.markeredgewidth": 0.9,
    "legend.frameon": False,
    "legend.handlelength": 2.8,  # so that dashes show
}


class Look(NamedTuple):
    """What tells a method from others; without colours, its marker does.

    Attributes:
        color: Colour of line, marker and band.
        marker: Shape of the marker.
        filled: Whether the marker is filled, or open.
    """

    color: str
    marker: str
    filled: bool


SHAPES = {  # of each colour
    BLACK: "o",
    VERMILLION: "s",
    BLUE: "D",
    ORANGE: "^",
    PINK: "v",
    GREEN: "P",
    SKY: "X",
    WINE: "<",
    OLIVE: ">",
    INDIGO: "h",
}
PAIRS = {  # methods that share a colour, as they are rarely in one figure: with filled and with open markers
    BLACK: ("FedAvg", "Local"),
    VERMILLION: ("FedAvg-FT", "FedBABU"),
    BLUE: ("FedRep", "LinearFedRep"),
    ORANGE: ("LG-FedAvg", "FedRoD"),
    PINK: ("HF-MAML", "DisPFL"),
    GREEN: ("Ditto", "Per-FedAvg"),
    SKY: ("pFedMe", "D-PSGD"),
    WINE: ("FedMac", "Delta-FL"),
    OLIVE: ("HeurFedAMP", "FedAMP"),
    INDIGO: ("DePRL", "FedProx"),
}
LOOKS = {
    name: Look(color, SHAPES[color], filled)
    for color, pair in PAIRS.items()
    for name, filled in zip(pair, (True, False), strict=True)
}
# names of methods with stage doubling; others end in DOUBLED
BASES = {"FLANP": "FedAvg", "FLANP-FT": "FedAvg-FT", "FedRep-SRPFL": "FedRep", "LG-SRPFL": "LG-FedAvg"}
DOUBLED = " + doubling"


def looks_of(labels: Sequence[str]) -> list[dict[str, Any]]:
    """How to draw some methods: the same in every figure, whatever else is in it.

    Args:
        labels: Their names, such as ``FedRep-SRPFL``. Others, such as those of own methods or of variants with other
            settings, take looks that are left, in the order in which they come.

    Returns:
        Options of matplotlib's lines for each label. With stage doubling, a method has its colour and shape, but its
        line is dashed, and its marker open where it was filled.
    """
    bases = [base_of(label) for label in labels]
    left = _left({LOOKS[base] for base in bases if base in LOOKS})
    found = {base: LOOKS[base] if base in LOOKS else next(left) for base in dict.fromkeys(bases)}
    return [
        {
            "color": found[base].color,
            "marker": found[base].marker,
            "markerfacecolor": found[base].color if found[base].filled == (base == label) else "white",
            "linestyle": "-" if base == label else "--",
        }
        for label, base in zip(labels, bases, strict=True)
    ]


def base_of(label: str) -> str:
    """The label of the same method without stage doubling.

    Example:
        >>> base_of("FedRep-SRPFL, lr=0.1")
        'FedRep, lr=0.1'
        >>> base_of("Ditto + doubling")
        'Ditto'
    """
    name, comma, settings = label.partition(", ")
    return BASES.get(name, name.removesuffix(DOUBLED)) + comma + settings


def _left(taken: set[Look]) -> Iterator[Look]:
    """Looks in an endless order, first those in colours of their own; filled markers before open ones."""
    hues = {look.color for look in taken}
    order = sorted(
        (Look(color, SHAPES[color], filled) for filled in (True, False) for color in COLORS),
        key=lambda look: (look in taken, look.color in hues, not look.filled),
    )
    return islice(cycle(order), None)
