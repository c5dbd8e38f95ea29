from pfl_lightning.client.after_steps import Follow, Masked
from pfl_lightning.client.engine import BackendName, Engine
from pfl_lightning.client.examples import Examples, Samples, largest_first
from pfl_lightning.client.penalties import Correlation, Penalty, Proximity, SmoothL1, Total, total
from pfl_lightning.client.phase import Gradient, Phase

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
    "largest_first",
    "total",
]
