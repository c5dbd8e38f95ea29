from pfl_lightning.client.after_steps import Follow, Masked
from pfl_lightning.client.engine import BackendName, Engine
from pfl_lightning.client.examples import Examples, Samples, largest_first
from pfl_lightning.client.penalties import Correlation, Penalty, Proximity, SmoothL1, Total, total
from pfl_lightning.client.phase import Gradient, Phase
from pfl_lightning.client.sparse_training import (
    drop_ratio,
    erk_densities,
    moved_masks,
    random_masks,
    uniform_densities,
)

__all__ = [
    "BackendName",
    "Correlation",
    "Engine",
    "Examples",
    "Follow",
    "Gradient",
    "Masked",
    "Penalty",
    "Phase",
    "Proximity",
    "Samples",
    "SmoothL1",
    "Total",
    "drop_ratio",
    "erk_densities",
    "largest_first",
    "moved_masks",
    "random_masks",
    "total",
    "uniform_densities",
]
