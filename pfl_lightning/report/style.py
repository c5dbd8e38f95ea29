"""The look of figures in print size: sizes, and one colour and marker for each method."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_params_from_file

PRINT: dict[Any, Any] = rc_params_from_file(Path(__file__).with_name("print.mplstyle"), use_default_template=False)
COLORS: tuple[str, ...] = tuple(PRINT["axes.prop_cycle"].by_key()["color"])
# a card of TensorBoard's page is about 310 pixels wide
CARD: dict[Any, Any] = {**PRINT, "font.size": 13, "axes.titlesize": 13, "lines.linewidth": 2}
CARD_SIZE = (4.5, 3.4)  # inches


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


SHAPES = "DsPv^Xo<>h"  # of each colour
PAIRS = (  # methods that share a colour, as they are rarely in one figure: with filled and with open markers
    ("FedRep", "LinearFedRep"),
    ("FedAvg-FT", "FedBABU"),
    ("Ditto", "Per-FedAvg"),
    ("HF-MAML", "DisPFL"),
    ("LG-FedAvg", "FedRoD"),
    ("pFedMe", "D-PSGD"),
    ("FedAvg", "Local"),
    ("FedMac", "Delta-FL"),
    ("HeurFedAMP", "FedAMP"),
    ("DePRL", "FedProx"),
)
LOOKS = {
    name: Look(color, shape, filled)
    for color, shape, pair in zip(COLORS, SHAPES, PAIRS, strict=True)
    for name, filled in zip(pair, (True, False), strict=True)
}


def looks_of(labels: Sequence[str], plain: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """How to draw some methods: the same in every figure, whatever else is in it.

    Args:
        labels: Their names, such as ``FedRep-SRPFL``. Those that are not in ``LOOKS``, such as own methods or variants
            with other settings, take looks that are left, in the order in which they come.
        plain: The same without stage doubling; by default none of them doubles.

    Returns:
        Options of matplotlib's lines for each label. With stage doubling, a method has its colour and shape, but its
        line is dashed, and its marker open where it was filled.
    """
    bases = labels if plain is None else plain
    free = _free_looks({LOOKS[base] for base in bases if base in LOOKS})
    looks = {base: LOOKS[base] if base in LOOKS else next(free) for base in dict.fromkeys(bases)}
    return [
        {
            "color": looks[base].color,
            "marker": looks[base].marker,
            "markerfacecolor": looks[base].color if looks[base].filled == (base == label) else "white",
            "linestyle": "-" if base == label else "--",
        }
        for label, base in zip(labels, bases, strict=True)
    ]


def _free_looks(used: set[Look]) -> Iterator[Look]:
    """Looks in an endless order, first those in unused colours; filled markers before open ones."""
    colors = {look.color for look in used}
    return cycle(sorted(LOOKS.values(), key=lambda look: (look in used, look.color in colors, not look.filled)))
