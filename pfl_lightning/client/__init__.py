from pfl_lightning.client.engine import BackendName, Engine
from pfl_lightning.client.examples import Examples, Samples, largest_first
from pfl_lightning.client.penalties import Correlation, Proximity, SmoothL1, Total
from pfl_lightning.client.phase import Gradient, Phase

__all__ = [
    "BackendName",
    "Correlation",
    "Engine",
    "Examples",
    "Gradient",
    "Phase",
    "Proximity",
    "Samples",
    "SmoothL1",
    "Total",
    "largest_first",
]
