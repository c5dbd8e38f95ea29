from pfl_lightning.client.after_steps import Follow, Masked
from pfl_lightning.client.engine import BackendName, Engine
from pfl_lightning.client.examples import Examples, Samples, largest_first
from pfl_lightning.client.penalties import Correlation, Penalty, Proximity, SmoothL1, Total, total
from pfl_lightning.client.phase import Gradient, Phase
from pfl_lightning.client.rehearsal import Cost, Rehearsal

__all__ = [
    "BackendName",
    "Correlation",
    "Cost",
    "Engine",
    "Examples",
    "Follow",
    "Gradient",
    "Masked",
    "Penalty",
    "Phase",
    "Proximity",
    "Rehearsal",
    "Samples",
    "SmoothL1",
    "Total",
    "largest_first",
    "total",
]
