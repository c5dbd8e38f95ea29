"""Stage doubling: trains with the fastest clients first, and doubles their number from stage to stage."""

from pfl_lightning.callbacks.doubling.gradient import GradientDoubling
from pfl_lightning.callbacks.doubling.oracle import OracleDoubling
from pfl_lightning.callbacks.doubling.stages import Doubling, StageDoubling

__all__ = ["Doubling", "GradientDoubling", "OracleDoubling", "StageDoubling"]
