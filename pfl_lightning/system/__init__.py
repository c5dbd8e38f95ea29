from pfl_lightning.system.clock import Clock
from pfl_lightning.system.ledger import Ledger, model_bits
from pfl_lightning.system.participation import Participation
from pfl_lightning.system.speeds import (
    DynamicExponential,
    FixedExponential,
    FixedSpeeds,
    Speeds,
    Times,
    TwoPopulation,
    UniformTime,
)

__all__ = [
    "Clock",
    "DynamicExponential",
    "FixedExponential",
    "FixedSpeeds",
    "Ledger",
    "Participation",
    "Speeds",
    "Times",
    "TwoPopulation",
    "UniformTime",
    "model_bits",
]
