"""Figures that can be read on a card of TensorBoard's page, which is about 310 pixels wide."""

from typing import Any

from pfl_lightning.report.style import PRINT

CARD_SIZE = (4.5, 3.4)  # inches
CARD: dict[Any, Any] = {**PRINT, "font.size": 13, "axes.titlesize": 13, "lines.linewidth": 2}
