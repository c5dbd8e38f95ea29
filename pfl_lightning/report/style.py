"""The look of figures in print size."""

from typing import Any

# Okabe and Ito's colours for the colour-blind (Wong, Nature Methods 8, 441), the palest last
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
PRINT: dict[Any, Any] = {
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.linewidth": 1.3,
    "lines.markersize": 2.5,
    "legend.frameon": False,
}
